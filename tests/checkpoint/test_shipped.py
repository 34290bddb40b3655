"""The weights that come with mmpola: their files, and what they recognise."""

import pytest
import timm
import torch

import mmpola.timm  # noqa: F401
from mmpola import PolaSwin
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import SHIPPED_FOLDER, SHIPPED_MODELS
from mmpola.pretraining.class_folders import ClassFolders
from mmpola.zoo import EVERYDAY_DETECTOR, NAMED

NANO = {'type': 'Pretrained', 'checkpoint': 'mmpola://pola_swin_nano'}
LEAST_ACCURACY = {'pola_swin_nano': (0.55, 0.74), 'pola_pvt_nano': (0.56, 0.76)}  # top-1, top-5


def test_the_folder_has_the_files_of_the_list_and_each_is_small():
    files = {path.name: path.stat().st_size for path in SHIPPED_FOLDER.iterdir()}
    models = [*SHIPPED_MODELS, EVERYDAY_DETECTOR]
    assert files.keys() == {f'{model}.safetensors' for model in models}
    assert max(files.values()) < 6.5e6
    assert set(SHIPPED_MODELS) <= NAMED.keys()


@pytest.mark.parametrize('name', SHIPPED_MODELS)
def test_photographs_are_recognised(name, real_data):
    """409 photographs of ten of ImageNet's classes, which it has not seen."""
    model = timm.create_model(name, pretrained=True).eval()
    transform = {
        'input_size': 96,
        'interpolation': 'bicubic',
        'crop_pct': 1.0,
        'crop_mode': 'center',
    }
    root = str(real_data / 'imagenet_mini' / 'val')
    data = ClassFolders(root, training=False, classes='imagenet-1k', transform=transform)
    images = torch.stack([data[index]['inputs'] for index in range(len(data))])
    with torch.no_grad():
        best = model(images).topk(5).indices
    right = best == torch.from_numpy(data.labels)[:, None]
    top1, top5 = LEAST_ACCURACY[name]
    assert right[:, 0].float().mean() > top1  # chance: 0.001
    assert right.any(1).float().mean() > top5


def test_a_backbone_of_other_sizes_windows_and_channels_starts_from_them():
    shipped = timm.create_model('pola_swin_nano', pretrained=True).state_dict()
    backbone = PolaSwin('nano', pretrain_img_size=(96, 128), in_channels=4, init_cfg=NANO)
    backbone.init_weights()
    name = 'stages.3.blocks.0.mlp.fc1.weight'
    assert torch.equal(backbone.state_dict()[name], shipped[f'backbone.{name}'])
    PolaSwin('nano', window_size=12, init_cfg=NANO).init_weights()


def test_a_model_that_only_looks_like_it_or_a_damaged_file_is_refused(tmp_path, monkeypatch):
    arch = {'embed_dims': 32, 'depths': (1, 1, 2, 2), 'num_heads': (1, 2, 4, 8)}
    with pytest.raises(CheckpointError, match='does not fit PolaSwin; nothing was loaded'):
        PolaSwin(arch, init_cfg=NANO).init_weights()
    content = (SHIPPED_FOLDER / 'pola_swin_nano.safetensors').read_bytes()
    (tmp_path / 'pola_swin_nano.safetensors').write_bytes(content[:-100])
    monkeypatch.setattr('mmpola.checkpoint.hub.SHIPPED_FOLDER', tmp_path)
    with pytest.raises(CheckpointError, match='not a checkpoint, or truncated'):
        PolaSwin('nano', init_cfg=NANO).init_weights()
