"""The scripts take what `init_cfg` takes: authors' files, bare state dicts, safetensors, averaged
weights.
"""

import json

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image
from safetensors.torch import save_file

from mmpola.backbones.weight_names import POLA_SWIN, POLAFORMER_PP, to_released
from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.start.fit import (
    load_model,
    read_checkpoint_for,
    read_training_checkpoint,
    starting_weights,
)
from tests.helpers.configs import SMALL_ARCHS
from tests.helpers.processes import run_script
from tests.helpers.training import small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')

PLUS = {'arch': SMALL_ARCHS['mmpola.PolaFormerPP']}
SPANIEL = 217  # label of ImageNet's n02102040


@pytest.fixture
def classifier(tmp_path):
    """A function that writes a config of a small classifier of so many classes; no image of its
    training exists.
    """

    def write(num_classes=1000, **backbone):
        cfg = small_config(tmp_path / 'absent', tmp_path / 'work')
        cfg.model.num_classes = num_classes
        cfg.model.backbone.update(backbone)
        path = tmp_path / f'{num_classes}.py'
        cfg.dump(path)
        return path

    return write


@pytest.fixture
def weights(classifier):
    """Weights of such a classifier, under the authors' names, that finds a spaniel in every
    image.
    """
    torch.manual_seed(0)
    state_dict = MODELS.build(Config.fromfile(classifier()).model).state_dict()
    state_dict['head.bias'][SPANIEL] = 50
    authors = {name.removeprefix('backbone.'): x for name, x in state_dict.items()}
    authors = to_released(authors, POLA_SWIN)
    return authors | {
        'layers.2.blocks.0.attn.relative_position_index': torch.zeros(49, 49, dtype=torch.long)
    }


@pytest.fixture
def photo(tmp_path):
    """A photo in the folder of its class."""
    path = tmp_path / 'absent' / 'val' / 'n02102040' / 'photo.png'
    path.parent.mkdir(parents=True)
    Image.new('RGB', (50, 40), (200, 90, 30)).save(path)
    return path


def save(name, weights, folder):
    """Write weights as their authors do, with averages of useless ones, or as safetensors."""
    if name == 'weights.safetensors':
        save_file(weights, folder / name)
    elif name == 'averaged.pth':
        useless = {key: 0 * x for key, x in weights.items()}
        torch.save({'model': useless, 'model_ema': weights}, folder / name)
    else:
        torch.save({'model': weights, 'config': 1}, folder / name)
    return folder / name


@pytest.mark.parametrize('name', ['authors.pth', 'averaged.pth', 'weights.safetensors'])
def test_a_photo_is_classified_and_evaluated_without_the_training_images(
    name, classifier, weights, photo, tmp_path, capsys
):
    config, checkpoint, out = classifier(), save(name, weights, tmp_path), tmp_path / 'out'
    assert run_script('predict', config, checkpoint, photo, '--out', out) == 0
    best = json.loads((out / 'preds' / 'photo.json').read_text())['classes'][0]
    assert (best['label'], best['class'], best['score']) == (
        SPANIEL,
        'n02102040',
        pytest.approx(1, abs=1e-6),
    )
    assert run_script('test', config, checkpoint) == 0
    scalars = next((tmp_path / 'work').glob('*/*.json')).read_text()
    assert json.loads(scalars)['accuracy/top1'] == 100
    assert ('averaged (EMA)' in capsys.readouterr().out) == (name == 'averaged.pth')


def test_the_averages_of_a_file_are_evaluated_if_asked_for(
    classifier, weights, photo, tmp_path, capsys
):
    """Files of PolaFormer++'s training code have plain weights, here useless, and averages."""
    plain = {name: 0 * x for name, x in weights.items()}
    path = tmp_path / 'best.pth'
    torch.save({'model': plain, 'state_dict_ema': weights}, path)
    assert run_script('test', classifier(), path, '--weights', 'ema') == 0
    scalars = next((tmp_path / 'work').glob('*/*.json')).read_text()
    assert json.loads(scalars)['accuracy/top1'] == 100
    assert "from 'state_dict_ema'; averaged (EMA) weights" in capsys.readouterr().out


def test_a_moving_average_in_the_config_gets_the_weights_too(classifier, weights, photo, tmp_path):
    config = classifier()
    average = 'type=EMAHook', 'ema_type=ExponentialMovingAverage'
    arguments = '--cfg-options', *(f'default_hooks.average.{entry}' for entry in average)
    assert run_script('test', config, save('authors.pth', weights, tmp_path), *arguments) == 0
    assert (
        json.loads(next((tmp_path / 'work').glob('*/*.json')).read_text())['accuracy/top1'] == 100
    )


def build(path):
    return build_model(Config.fromfile(path))


def test_analysis_and_prediction_need_no_class_names_and_no_class_folders(
    classifier, photo, tmp_path
):
    config = classifier(num_classes=7)
    checkpoint = tmp_path / 'bare.pth'
    torch.save(MODELS.build(Config.fromfile(config).model).state_dict(), checkpoint)
    options = (
        '--cfg-options',
        'test_dataloader.dataset.type=MyImages',
        'test_dataloader.dataset.transform=None',
    )
    layer = '--layers', 'stages.0.blocks.0.attn'
    assert (
        run_script(
            'analyze', config, checkpoint, photo, '--out', tmp_path / 'out', *layer, *options
        )
        == 0
    )
    assert (tmp_path / 'out' / 'photo.json').is_file()
    named = tmp_path / 'named'
    assert run_script('predict', config, checkpoint, photo, '--out', named, *options) == 0
    (best, *_) = json.loads((named / 'preds' / 'photo.json').read_text())['classes']
    assert best['class'] == f'class {best["label"]}'


def test_a_detector_of_the_authors_is_loaded_with_their_names(tiny_config, tmp_path, capsys):
    """Their backbone also has norms of maps that no neck reads."""
    cfg = Config.fromfile(tiny_config)
    cfg.model.backbone = {'type': 'mmpola.PolaFormerPP', **PLUS, 'out_indices': (1, 2, 3)}
    cfg.model.neck.in_channels = [16, 24, 32]
    config = tmp_path / 'plus.py'
    cfg.dump(config)
    whole = MODELS.build({**PLUS, 'type': 'mmpola.PolaFormerPP'}).state_dict()
    detector = MODELS.build({**cfg.model, '_scope_': 'mmdet'}).state_dict()
    names = {}
    authors = {}
    for name, x in detector.items():
        released = name
        if name.startswith('backbone.'):
            inside = to_released({name.removeprefix('backbone.'): x}, POLAFORMER_PP)
            released = f'backbone.{next(iter(inside))}'
        names[name] = released
        authors[released] = torch.randn_like(x) if x.is_floating_point() else x
    authors['backbone.extra_norms.0.norm.weight'] = whole['norms.0.weight']
    authors['backbone.layers.0.RoPE.angle'] = torch.zeros(3)
    assert 'backbone.extra_norms.1.norm.weight' in authors
    path = tmp_path / 'epoch_12.pth'
    torch.save({'meta': {'CLASSES': ('a',)}, 'state_dict': authors}, path)

    model = build(config)
    checkpoint = read_checkpoint_for(path, model)
    assert 'dropped: backbone.norms.0.weight' in capsys.readouterr().out
    assert checkpoint.weights.keys() == detector.keys()
    for loaded in (
        load_model(model, checkpoint),
        load_into(MODELS.build({**cfg.model, '_scope_': 'mmdet'}), path),
    ):
        for name, x in loaded.state_dict().items():
            assert torch.equal(x, authors[names[name]]), name

    start = starting_weights(read_training_checkpoint(path), model)
    count = len(detector)
    assert start.keys() == detector.keys()
    assert f'load_from: {path}: {count} of {count} tensors are loaded\n' in capsys.readouterr().out


def load_into(detector, path):
    """Load a file as the init_cfg of a detector does, with MMEngine."""
    detector.init_cfg = {'type': 'Pretrained', 'checkpoint': str(path)}
    detector.init_weights()
    return detector
