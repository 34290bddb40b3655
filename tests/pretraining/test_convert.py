"""Converting checkpoints: what is kept of every format, what loads the files, what is printed."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.runner import load_checkpoint

import mmpola
from mmpola.backbones import PolaSwin
from mmpola.checkpoint.load import load_weights
from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.start.fit import read_checkpoint_for
from mmpola.pretraining.convert import (
    conversion_summary,
    convert,
    convert_whole,
    named_weights,
    sha256,
    write_conversion,
)
from tests.helpers.models import (
    ARCH,
    BACKBONE,
    assert_same,
    authors_names,
    classifier,
    named,
    run_convert,
    save,
)
from tests.helpers.refusals import assert_lines, refusal


def test_weights_of_the_authors_and_of_timm_give_the_same_file(weights, tmp_path):
    """tests/checkpoint/test_load.py has the other formats."""
    worse = {key: x + 1 for key, x in weights.items()}
    formats = {
        'authors': ({'model': authors_names(weights), 'epoch': 3}, 'model', 'model'),
        'timm': (
            {'state_dict': authors_names(worse), 'state_dict_ema': authors_names(weights)},
            'state_dict_ema',
            'ema',
        ),
    }
    for name, (content, container, kind) in formats.items():
        source = save(content, tmp_path / f'{name}.pth')
        conversion = convert(source, metric='top-1 12.3')
        assert_same(conversion.state_dict, dict(weights))
        assert conversion.container == container, name
        assert conversion.meta == {
            'arch': None,
            'source': f'{name}.pth',
            'source_sha256': sha256(source.read_bytes()),
            'metric': 'top-1 12.3',
            'weights': kind,
            'mmpola_version': mmpola.__version__,
        }


@pytest.mark.parametrize('name', ['pola_swin_mixed', 'pola_pvt_llss', 'polaformer_pp'])
def test_authors_tensors_are_kept_and_size_dependent_buffers_are_not(name, golden, tmp_path):
    authors = golden(name)['checkpoint']['model']
    conversion = convert(save({'model': authors}, tmp_path / 'authors.pth'))
    skipped = {
        key for key in authors if key.endswith(('relative_position_index', 'attn_mask', 'angle'))
    }
    assert_same(
        authors_names(conversion.state_dict),
        {key: x for key, x in authors.items() if key not in skipped},
    )
    assert {key for key in conversion.state_dict if not key.startswith('backbone.')} == {
        key for key in authors if key.startswith(('norm.', 'proj.', 'head.'))
    }


def test_every_loader_takes_the_file(weights, tmp_path):
    slim = tmp_path / 'slim.pth'
    write_conversion(convert(save({'state_dict': weights}, tmp_path / 'epoch_1.pth')), slim)
    pretrained = {'type': 'Pretrained', 'checkpoint': str(slim)}
    inside = {
        key.removeprefix('backbone.'): x
        for key, x in weights.items()
        if key.startswith('backbone.')
    }

    whole = classifier(init_cfg=pretrained)
    whole.init_weights()
    assert_same(whole.state_dict(), weights)

    backbone = MODELS.build({**BACKBONE, 'out_norm': False, 'init_cfg': pretrained})
    backbone.init_weights()
    assert_same(backbone.state_dict(), inside)

    plain = classifier()
    load_checkpoint(plain, str(slim), strict=True)
    assert_same(plain.state_dict(), weights)
    plain_backbone = MODELS.build({**BACKBONE, 'out_norm': False})
    load_checkpoint(plain_backbone, str(slim), strict=False, revise_keys=[(r'^backbone\.', '')])
    assert_same(plain_backbone.state_dict(), inside)

    assert torch.load(slim, weights_only=True)['meta']['source'] == 'epoch_1.pth'


def test_half_precision_in_safetensors_is_loaded_as_float32(tmp_path):
    """Position tables keep their grid, which the shape of a table does not tell."""
    backbone = PolaSwin(ARCH, pretrain_img_size=(32, 128))
    source = save({'state_dict': backbone.state_dict()}, tmp_path / 'a.pth')
    written = tmp_path / 'a.safetensors'
    assert run_convert(source, written, '--half', '--backbone-only') == 0
    assert written.stat().st_size < 0.6 * source.stat().st_size
    loaded = PolaSwin(ARCH, pretrain_img_size=(32, 128))
    load_weights(loaded, written)
    for name, x in loaded.state_dict().items():
        expected = backbone.state_dict()[name]
        assert x.dtype == expected.dtype
        if x.is_floating_point():
            expected = expected.half().float()
        assert torch.equal(x, expected), name


def test_the_backbone_of_a_detector_is_kept(tmp_path):
    backbone = PolaSwin(ARCH, pretrain_img_size=64).state_dict()
    others = {
        'neck.conv.weight': torch.zeros(3),
        'roi_head.fc.weight': torch.zeros(2),
        'roi_head.fc.bias': torch.ones(1),
    }
    content = {
        'state_dict': {f'backbone.{key}': x for key, x in backbone.items()} | others,
        'optimizer': {},
    }
    source = save(content, tmp_path / 'epoch_12.pth')
    conversion = convert(source)
    assert_same(authors_names(conversion.state_dict), backbone)
    write_conversion(conversion, tmp_path / 'slim.pth')
    report = load_weights(PolaSwin(ARCH, pretrain_img_size=64), tmp_path / 'slim.pth')
    assert (len(report.loaded), report.new, report.dropped) == (len(backbone), [], [])


@pytest.mark.slow
def test_a_whole_detector_is_written_and_read_everywhere(tiny_config, write_checkpoint, tmp_path):
    """The file has no optimizer and is named by its SHA-256.

    mmdet's inferencer needs nothing beside it.
    """
    from mmdet.apis import DetInferencer

    cfg = Config.fromfile(tiny_config)
    classes = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')
    meta = {'cfg': cfg.pretty_text, 'dataset_meta': {'classes': classes}, 'epoch': 3, 'seed': 1}
    source = write_checkpoint(
        tiny_config, tmp_path / 'epoch_3.pth', meta=meta, optimizer={'state': {}}
    )
    written = write_conversion(
        convert_whole(source, metric='box AP 12.3'), tmp_path / 'detector.pth'
    )
    assert written.name == f'detector-{sha256(written.read_bytes())[:8]}.pth'
    content = torch.load(written, weights_only=True)
    assert content.keys() == {'state_dict', 'meta'}
    assert_same(content['state_dict'], torch.load(source, weights_only=True)['state_dict'])
    assert content['meta'].keys() >= {'cfg', 'dataset_meta', 'metric', 'source_sha256'}
    assert 'seed' not in content['meta']
    inferencer = DetInferencer(weights=str(written), device='cpu', show_progress=False)
    assert inferencer.visualizer.dataset_meta['classes'] == classes
    checkpoint = read_checkpoint_for(written, build_model(cfg))
    assert checkpoint.classes == classes


def test_a_file_without_config_or_classes_is_no_whole_model(weights, tmp_path):
    source = save({'state_dict': weights, 'meta': {'epoch': 3}}, tmp_path / 'epoch_3.pth')
    message = refusal(convert_whole, source)
    assert_lines([message], ('--whole: ', str(source), 'with epoch'))


def test_the_authors_names_go_there_and_back(tmp_path):
    """A file with the released names gives the same tensors as the file that it was made from."""
    theirs = tmp_path / 'theirs.pth'
    ours = tmp_path / 'ours.pth'
    source = save({'state_dict': named()}, tmp_path / 'a.pth')
    conversion = convert(source, arch='pola_pvt_v2_b0', authors=True)
    assert {
        'patch_embed1.proj.weight',
        'block1.0.attn.power',
        'norm4.weight',
        'head.weight',
    } <= set(conversion.state_dict)
    write_conversion(conversion, theirs)
    assert set(torch.load(theirs, weights_only=True)) == {'model', 'meta'}
    back = convert(theirs, arch='pola_pvt_v2_b0')
    assert back.container == 'model'
    write_conversion(back, ours)
    assert_same(torch.load(ours, weights_only=True)['state_dict'], named())


def test_the_authors_names_need_the_name_of_the_model(weights, tmp_path):
    source = save({'state_dict': weights}, tmp_path / 'a.pth')
    assert refusal(convert, source, authors=True).startswith('--authors: expected --arch NAME')


def test_the_head_can_be_left_out(weights, tmp_path):
    conversion = convert(save({'state_dict': weights}, tmp_path / 'a.pth'), backbone_only=True)
    assert set(conversion.state_dict) == {key for key in weights if key.startswith('backbone.')}


def test_a_norm_without_a_last_layer_is_not_a_head():
    weights = {'norm.weight': torch.ones(1), 'stages.0.x': torch.ones(1)}
    assert set(named_weights(weights, backbone_only=False)) == {'backbone.stages.0.x'}


def test_views_and_parameters_are_written_without_their_storage(weights, tmp_path):
    storage = torch.zeros(1_000_000)
    weights['head.bias'] = torch.nn.Parameter(storage[:5])
    slim = tmp_path / 'slim.pth'
    write_conversion(convert(save({'state_dict': weights}, tmp_path / 'a.pth')), slim)
    assert slim.stat().st_size < (tmp_path / 'a.pth').stat().st_size - 3_900_000
    assert type(torch.load(slim, weights_only=True)['state_dict']['head.bias']) is torch.Tensor


def test_tensors_that_a_named_model_does_not_use_are_dropped(tmp_path):
    """The authors' Pola-PVT files have a last norm that their forward never reads.

    Here one is added.
    """
    source = save({'model': {**named(), 'norm.weight': torch.ones(256)}}, tmp_path / 'a.pth')
    conversion = convert(source, arch='pola_pvt_v2_b0')
    assert_same(conversion.state_dict, named())


def test_converting_again_keeps_the_description(weights, tmp_path):
    first = tmp_path / 'first.pth'
    second = tmp_path / 'second.pth'
    source = save({'model': weights, 'model_ema': weights}, tmp_path / 'a.pth')
    write_conversion(convert(source, metric='top-1 82.6'), first)
    write_conversion(convert(first, backbone_only=True), second)
    meta = torch.load(second, weights_only=True)['meta']
    assert (meta['weights'], meta['metric'], meta['source']) == ('ema', 'top-1 82.6', 'first.pth')
    write_conversion(convert(source, metric='top-1 82.6'), tmp_path / 'again.pth')
    assert (tmp_path / 'again.pth').read_bytes() == first.read_bytes()


def test_buffers_of_norms_are_not_counted_as_parameters(tmp_path):
    source = save(named(), tmp_path / 'a.pth')
    slim = tmp_path / 's.pth'
    conversion = convert(source, arch='pola_pvt_v2_b0')
    conversion.state_dict['backbone.norm.running_mean'] = torch.zeros(1000)
    write_conversion(conversion, slim)
    expected = sum(x.numel() for x in named().values())
    summary = conversion_summary(conversion, source, slim)
    assert f' {expected:,} parameters\n' in summary
    assert '  model    pola_pvt_v2_b0, every tensor fits\n' in summary


@pytest.mark.parametrize(
    'text',
    [
        'import mmpola_ran_this',
        "model = __import__('mmpola_ran_this')",
        "dict = exec\nmodel = dict('import mmpola_ran_this')",
        "model = dict(**__import__('mmpola_ran_this'))",
        "model = {key: 1 for key in 'ab'}",
        'model = dict(',
    ],
)
def test_the_config_in_a_file_is_not_run(text, weights, tmp_path):
    meta = {'cfg': text, 'dataset_meta': {'classes': ('a', 'b')}}
    source = save({'meta': meta, 'state_dict': weights}, tmp_path / 'a.pth')
    message = refusal(convert_whole, source)
    assert message.startswith(f"{source}: expected a config of plain values in meta['cfg'], got ")


def test_the_script_writes_into_the_working_directory(weights, tmp_path, monkeypatch, capsys):
    save({'state_dict': weights}, tmp_path / 'a.pth')
    monkeypatch.chdir(tmp_path)
    assert run_convert('a.pth', 'b.pth') == 0
    printed = capsys.readouterr().out
    assert 'a.pth -> b.pth' in printed
    assert "weights  plain, from 'state_dict'" in printed
    assert (tmp_path / 'b.pth').stat().st_mode == (tmp_path / 'a.pth').stat().st_mode
