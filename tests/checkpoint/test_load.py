"""Loading weights from every format: all of them or none."""

import math
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mmpola.backbones import PolaPVT
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.contents import find_weights, weights_note
from mmpola.checkpoint.load import compare, load_weights
from tests.helpers.models import assert_same


def save(content, tmp_path):
    path = tmp_path / 'weights.pth'
    torch.save(content, path)
    return path


def prefixed(weights, prefix):
    return {prefix + key: x for key, x in weights.items()}


FORMATS = [
    (lambda w: w, 'bare state dict'),
    (lambda w: {'model': w, 'epoch': 3}, 'model'),
    (
        lambda w: {'state_dict': prefixed(w, 'backbone.') | {'neck.w': torch.zeros(1)}, 'meta': {}},
        'state_dict',
    ),
    (lambda w: {'state_dict': prefixed(w, 'module.backbone.')}, 'state_dict'),
    (
        lambda w: {
            'state_dict': prefixed(w, 'module.backbone._orig_mod.') | {'neck.w': torch.zeros(1)}
        },
        'state_dict',
    ),
    (lambda w: {'model': prefixed(w, '_orig_mod.module.')}, 'model'),
    (lambda w: {'model': prefixed(w, 'module._orig_mod.')}, 'model'),
    (lambda w: {'model': {k: x + 1 for k, x in w.items()}, 'model_ema': w}, 'model_ema'),
]


@pytest.mark.parametrize(('wrap', 'container'), FORMATS)
def test_formats(build, wrap, container, weights, tmp_path):
    model = build()
    report = load_weights(model, save(wrap(weights), tmp_path))
    assert_same(model.state_dict(), weights)
    assert report.container == container
    assert len(report.loaded) == len(weights)


AUTHORS = {'model': 1, 'state_dict_ema': 2, 'optimizer': 3}  # written for PolaFormer++
TIMM = {'state_dict': 1, 'state_dict_ema': 2}
DEIT = {'model': 1, 'model_ema': 2}
MMENGINE = {'state_dict': 2, 'ema_state_dict': 1}
NO_AVERAGE = {'state_dict': 1}
CHOICES = [
    (AUTHORS, None, 1),
    (AUTHORS, 'model', 1),
    (AUTHORS, 'ema', 2),
    (TIMM, None, 2),
    (TIMM, 'model', 1),
    (TIMM, 'ema', 2),
    (DEIT, None, 2),
    (DEIT, 'model', 1),
    (MMENGINE, None, 2),
    (MMENGINE, 'model', 1),
    (MMENGINE, 'ema', 2),
    (NO_AVERAGE, None, 1),
    (NO_AVERAGE, 'model', 1),
]


@pytest.mark.parametrize(('keys', 'which', 'value'), CHOICES)
def test_which_weights_of_a_file_with_plain_and_averaged_ones_are_taken(keys, which, value):
    """1 stands for the plain weights and 2 for the averages."""
    content = {}
    for key, number in keys.items():
        content[key] = {'module.x': torch.tensor(float(number))}
    content.get('ema_state_dict', {})['steps'] = torch.tensor(7)  # as MMEngine counts
    container, found = find_weights(content, 'file', which)
    assert found == {'x': value}
    note = weights_note(content, container)
    if keys is NO_AVERAGE:
        assert note == ''
    else:
        assert note.startswith({1: 'plain weights', 2: 'averaged (EMA) weights'}[value])


def test_averages_that_a_file_does_not_have_are_refused():
    content = {'state_dict': {'x': torch.ones(1)}}
    with pytest.raises(CheckpointError, match=r'^file: no averaged \(EMA\) weights found'):
        find_weights(content, 'file', 'ema')
    with pytest.raises(CheckpointError, match=r'^weights: expected model or ema, got'):
        find_weights(content, 'file', 'average')


def test_the_log_names_the_local_file_of_a_model(build, weights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'checkpoints').mkdir()
    torch.save({'model': weights}, 'checkpoints/pola_swin_t.pth')
    report = load_weights(build(), 'mmpola://pola_swin_tiny')
    assert report.source == 'mmpola://pola_swin_tiny (checkpoints/pola_swin_t.pth)'


def test_comparing_loads_nothing(build, weights):
    model = build()
    before = {key: x.clone() for key, x in model.state_dict().items()}
    report = compare(model, weights | {'head.weight': torch.ones(2)}, 'a file')
    assert (report.source, report.dropped) == ('a file', ['head.weight'])
    assert report.loaded == list(weights)
    assert_same(model.state_dict(), before)


def test_heads_and_unbuilt_stages_are_dropped_and_output_norms_may_be_new(build, weights, tmp_path):
    authors = {key: x for key, x in weights.items() if not key.startswith('norms.')}
    authors |= {'norm.weight': torch.ones(128), 'head.weight': torch.ones(10, 128)}
    authors |= {
        'layers.2.blocks.0.attn.relative_position_index': torch.zeros(9, 9, dtype=torch.int64)
    }
    model = build(out_indices=(0, 2))
    report = load_weights(model, save({'model': authors}, tmp_path))
    assert {'head.weight', 'norm.weight', 'stages.3.blocks.0.attn.qkv.weight'} <= set(
        report.dropped
    )
    assert 'stages.3.downsample.reduction.weight' in report.dropped
    assert sorted(report.new) == [
        'norms.0.bias',
        'norms.0.weight',
        'norms.2.bias',
        'norms.2.weight',
    ]
    loaded = {key: x for key, x in model.state_dict().items() if key not in report.new}
    assert_same(loaded, {key: weights[key] for key in loaded})


def resized_by_the_authors(key, table, current):
    """Resize a table to the shape of `current` as the authors' utils.py, load_pretrained, does."""
    if 'positional_encoding' in key:
        _, length, channels = table.shape
        side = int(length**0.5)
        new_side = int(current.shape[1] ** 0.5)
        maps = table.permute(0, 2, 1).view(1, channels, side, side)
        resized = F.interpolate(maps, size=(new_side, new_side), mode='bicubic')
        return resized.view(1, channels, new_side**2).permute(0, 2, 1)
    length, heads = table.shape
    side = int(length**0.5)
    new_side = int(current.shape[0] ** 0.5)
    maps = table.permute(1, 0).view(1, heads, side, side)
    resized = F.interpolate(maps, size=(new_side, new_side), mode='bicubic')
    return resized.view(heads, new_side**2).permute(1, 0)


def test_tables_are_resized_as_by_the_authors(build, tmp_path):
    """From images of 224 and windows of 7 to 384 and 12, as Swin is fine-tuned."""
    small = build(pretrain_img_size=224, window_size=7)
    weights = {key: torch.randn_like(x) for key, x in small.state_dict().items()}
    tables = [
        key for key in weights if key.endswith(('positional_encoding', 'position_bias_table'))
    ]
    assert any('positional' in key for key in tables) and any('bias' in key for key in tables)
    model = build(pretrain_img_size=384, window_size=12)
    before = {key: x.clone() for key, x in model.state_dict().items()}
    report = load_weights(model, save({'model': weights}, tmp_path))
    loaded = model.state_dict()
    assert len(report.resized) == len(tables)
    for key in tables:
        expected = resized_by_the_authors(key, weights[key], before[key])
        torch.testing.assert_close(loaded[key], expected, rtol=0, atol=1e-6)
        shapes = f'{key} {list(weights[key].shape)} -> {list(before[key].shape)}'
        assert any(line.startswith(shapes) for line in report.resized)


def test_tables_are_resized_to_grids_that_are_not_square(build, weights, tmp_path):
    key = 'stages.0.blocks.0.attn.positional_encoding'
    weights[key].normal_()
    model = build(pretrain_img_size=(128, 64))
    load_weights(model, save(weights, tmp_path))
    maps = weights[key].view(1, 16, 16, 16).permute(0, 3, 1, 2)
    expected = F.interpolate(maps, size=(32, 16), mode='bilinear').flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.state_dict()[key], expected)


def test_tables_of_tokens_are_resized_bilinearly(tmp_path):
    """The tables of PolaPVT; the authors' code does not resize them."""
    arch = {
        'embed_dims': (8, 16, 32, 64),
        'depths': (1, 1, 1, 1),
        'num_heads': (1, 2, 4, 8),
        'mlp_ratios': (2, 2, 2, 2),
    }
    weights = PolaPVT(arch, pretrain_img_size=64).state_dict()
    model = PolaPVT(arch, pretrain_img_size=128)
    load_weights(model, save(weights, tmp_path))
    key = next(key for key in weights if key.endswith('pos_embed'))
    side = math.isqrt(weights[key].shape[1])
    maps = weights[key].unflatten(1, (side, side)).permute(0, 3, 1, 2)
    expected = F.interpolate(maps, scale_factor=2, mode='bilinear').flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.state_dict()[key], expected)


def test_a_file_that_does_not_fit_is_refused_with_the_whole_list(build, weights, tmp_path):
    del weights['stem.proj.bias']
    weights['stem.norm.weight'] = torch.ones(17)
    weights['stages.0.blocks.1.norm1.weight'] = torch.ones(16)
    weights['stem.norm.bias'][3] = float('nan')
    path = save(weights, tmp_path)
    model = build()
    before = {key: x.clone() for key, x in model.state_dict().items()}
    with pytest.raises(CheckpointError) as raised:
        load_weights(model, path)
    message = str(raised.value)
    assert message.startswith(f'{path}: does not fit PolaSwin')
    assert 'missing: stem.proj.bias [16]' in message
    assert 'not finite: stem.norm.bias has 1 NaN' in message
    assert 'unknown: stages.0.blocks.1.norm1.weight [16]' in message
    assert 'wrong shape: stem.norm.weight expected [16], got [17]' in message
    assert_same(model.state_dict(), before)


@pytest.mark.parametrize('rows', [0, 144, 168])
def test_a_bias_table_of_no_window_is_refused(build, weights, rows, tmp_path):
    key = 'stages.2.blocks.0.attn.relative_position_bias_table'
    weights[key] = torch.ones(rows, 4)
    with pytest.raises(
        CheckpointError, match=re.escape(f'wrong shape: {key} expected [169, 4], got [{rows}, 4]')
    ):
        load_weights(build(), save(weights, tmp_path))


def test_a_file_without_weights_is_refused(build, tmp_path):
    for content in ({'epoch': 3, 'meta': {}}, {'model': {'epoch': 3}, 'config': 1}, 3):
        path = save(content, tmp_path)
        with pytest.raises(CheckpointError, match=f'^{path}: no weights found'):
            load_weights(build(), path)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_parameters_are_loaded_from_every_usual_floating_dtype(build, weights, dtype, tmp_path):
    rounded = {key: x.to(dtype) for key, x in weights.items()}
    model = build()
    load_weights(model, save(rounded, tmp_path))
    assert_same(model.state_dict(), {key: x.float() for key, x in rounded.items()})


@pytest.mark.parametrize(
    'wrong',
    [
        torch.ones(3, dtype=torch.int8),
        torch.ones(3, dtype=torch.bool),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.eye(3).to_sparse(),
    ],
    ids=lambda x: f'{x.dtype} {x.layout}',
)
def test_parameters_that_are_not_dense_and_floating_are_refused(build, weights, wrong, tmp_path):
    path = save(weights | {'stem.proj.weight': wrong}, tmp_path)
    model = build()
    before = {key: x.clone() for key, x in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=f'^{path}: stem.proj.weight: expected a dense'):
        load_weights(model, path)
    assert_same(model.state_dict(), before)


def test_counters_are_loaded_from_integers(tmp_path):
    model = nn.BatchNorm1d(2)
    counter = {'num_batches_tracked': torch.tensor(3.0)}
    with pytest.raises(CheckpointError, match=r'num_batches_tracked: .* torch\.int64, got'):
        compare(model, model.state_dict() | counter, 'file')
    report = compare(model, model.state_dict(), 'file')
    assert report.loaded == list(model.state_dict())


def test_views_of_larger_tensors_are_loaded(build, weights, tmp_path):
    """Dense, although they are not contiguous; torch saves what they are views of."""
    key = 'stem.proj.weight'
    transposed = weights[key].transpose(0, 3).contiguous().transpose(0, 3)
    model = build()
    load_weights(model, save(weights | {key: transposed}, tmp_path))
    assert_same(model.state_dict(), weights)


def test_only_a_head_for_other_classes_names_their_numbers():
    model = torch.nn.ModuleDict({'head': torch.nn.Linear(4, 5), 'neck': torch.nn.Linear(4, 5)})
    weights = model.state_dict()
    for key, shape, hint in (
        ('head.weight', (6, 4), ' (num_classes is 5, the file has 6)'),
        ('head.weight', (5, 3), ''),
        ('neck.weight', (6, 4), ''),
    ):
        report = compare(model, {**weights, key: torch.zeros(shape)}, 'file')
        assert report.wrong_shape == [f'{key} expected [5, 4], got {list(shape)}{hint}']
