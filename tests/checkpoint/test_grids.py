"""Position tables keep their grid in every file: 256 tokens may be 16 x 16 or 8 x 32."""

from collections import OrderedDict

import pytest
import torch
from mmengine.runner.checkpoint import get_state_dict, weights_to_cpu
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from mmpola.backbones import PolaPVT
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.grids import safetensors_metadata, saved_grids
from mmpola.checkpoint.load import compare, load_weights
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.layers import position_tables
from mmpola.pretraining.convert import convert, write_conversion
from tests.helpers.models import assert_same

ARCH = {
    'embed_dims': (8, 16, 32, 64),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 2, 4, 8),
    'mlp_ratios': (2, 2, 2, 2),
}
WIDE = (32, 128)  # 8 x 32 tokens, as many as a square of 64 pixels has


def pola_pvt(size, **arguments):
    """A small Pola-PVT whose tables are not smooth."""
    model = PolaPVT(ARCH, pretrain_img_size=size, **arguments)
    with torch.no_grad():
        for key in position_tables(model):
            model.get_parameter(key).normal_()
    return model


def save_plain(model, path):
    torch.save(model.state_dict(), path)


def save_from_mmengine(model, path):
    """As the weights of a detector: MMEngine has its own function instead of `state_dict`."""
    whole = nn.Module()
    whole.backbone = model
    torch.save({'state_dict': weights_to_cpu(get_state_dict(whole)), 'meta': {}}, path)


def save_compiled(model, path):
    torch.save({'model': nn.DataParallel(torch.compile(model)).state_dict()}, path)


def save_safetensors(model, path):
    save_file(model.state_dict(), path, metadata=safetensors_metadata(model.state_dict()))


def save_converted(model, path):
    torch.save(model.state_dict(), f'{path}.source')
    write_conversion(convert(path.with_name(f'{path.name}.source')), path)


def save_converted_for_the_authors(model, path):
    torch.save(model.state_dict(), f'{path}.source')
    converted = convert(
        path.with_name(f'{path.name}.source'),
        backbone_only=True,
        arch='pola_pvt_nano',
        authors=True,
    )
    write_conversion(converted, path)


SAVE = {
    'weights.pth': save_plain,
    'mmengine.pth': save_from_mmengine,
    'compiled.pth': save_compiled,
    'weights.safetensors': save_safetensors,
    'converted.pth': save_converted,
}


@pytest.mark.parametrize('name', SAVE)
@pytest.mark.parametrize('size', [64, 96, (64, 256)], ids=str)
def test_every_file_keeps_the_grid_of_its_tables(name, size, tmp_path):
    """A model that is built at a size and one that is resized to it have equal tables."""
    learned = pola_pvt(WIDE)
    SAVE[name](learned, tmp_path / name)
    loaded = PolaPVT(ARCH, pretrain_img_size=size)
    report = load_weights(loaded, tmp_path / name)
    learned.set_input_size(size)
    assert_same(loaded.state_dict(), learned.state_dict())
    key = 'stages.0.blocks.0.attn.positional_encoding'
    assert any(line.startswith(f'{key} ') and '(8 x 32 ->' in line for line in report.resized)


def test_the_names_of_the_authors_keep_the_grid_too(tmp_path):
    learned = PolaPVT('nano', pretrain_img_size=WIDE)
    save_converted_for_the_authors(learned, tmp_path / 'authors.pth')
    content = read_checkpoint(tmp_path / 'authors.pth')
    grids = saved_grids(content['model'])
    assert grids['pos_embed1'] == (8, 32)
    assert grids['block2.0.attn.positional_encoding'] == (4, 16)


def test_the_keys_of_a_reduced_map_have_a_grid_of_their_own(tmp_path):
    learned = pola_pvt(WIDE, pola_sr_ratios=(2, 1, 1, 1))
    save_plain(learned, tmp_path / 'weights.pth')
    grids = saved_grids(read_checkpoint(tmp_path / 'weights.pth'))
    assert grids == position_tables(learned)
    assert grids['stages.0.blocks.0.attn.positional_encoding'] == (4, 16)
    assert learned.table_grids(WIDE) == grids


@pytest.mark.parametrize('engine', [False, True])
def test_load_state_dict_resizes_a_table_of_as_many_tokens_on_another_grid(engine):
    from mmengine.runner.checkpoint import load_state_dict

    learned = pola_pvt(WIDE)
    loaded = PolaPVT(ARCH, pretrain_img_size=64)
    if engine:
        load_state_dict(loaded, learned.state_dict(), strict=True)
    else:
        loaded.load_state_dict(learned.state_dict())
    learned.set_input_size(64)
    assert_same(loaded.state_dict(), learned.state_dict())


@pytest.mark.parametrize('save', [save_converted, save_converted_for_the_authors])
def test_load_state_dict_finds_the_grids_of_tables_that_it_renames(save, tmp_path):
    """The file names them as a classifier or the authors do, the model does not."""
    learned = PolaPVT('nano', pretrain_img_size=WIDE)
    save(learned, tmp_path / 'weights.pth')
    content = torch.load(tmp_path / 'weights.pth')
    loaded = PolaPVT('nano', pretrain_img_size=64)
    loaded.load_state_dict(content.get('state_dict') or content['model'])
    learned.set_input_size(64)
    assert_same(loaded.state_dict(), learned.state_dict())


def without_metadata(model):
    return OrderedDict(model.state_dict().items())


def resized(table, source, target, mode):
    maps = table.unflatten(1, source).permute(0, 3, 1, 2)
    return F.interpolate(maps, size=target, mode=mode).flatten(2).transpose(1, 2)


def test_an_authors_file_is_as_its_config_says_and_is_resized_as_they_do(tmp_path):
    """As many tokens as the model has: 16 x 16 in the file, 8 x 32 in the model."""
    given = without_metadata(pola_pvt(64))
    torch.save({'model': given, 'config': {'DATA': {'IMG_SIZE': 64}}}, tmp_path / 'authors.pth')
    model = PolaPVT(ARCH, pretrain_img_size=WIDE)
    load_weights(model, tmp_path / 'authors.pth')
    for key, mode in (
        ('stages.0.blocks.0.attn.positional_encoding', 'bicubic'),
        ('stages.0.pos_embed', 'bilinear'),
    ):
        expected = resized(given[key], (16, 16), (8, 32), mode)
        torch.testing.assert_close(model.get_parameter(key).data, expected)


def test_a_file_that_names_no_grid_is_square_only_if_the_model_is(tmp_path):
    path = tmp_path / 'bare.pth'
    given = without_metadata(pola_pvt(64))
    torch.save(given, path)
    model = PolaPVT(ARCH, pretrain_img_size=96)
    load_weights(model, path)
    key = 'stages.1.blocks.0.attn.positional_encoding'
    expected = resized(given[key], (8, 8), (12, 12), 'bicubic')
    torch.testing.assert_close(model.get_parameter(key).data, expected)


@pytest.mark.parametrize(('size', 'tokens'), [((64, 128), '16 x 32'), (WIDE, '8 x 32')])
def test_a_table_whose_grid_cannot_be_known_is_refused(size, tokens, tmp_path):
    """256 tokens may be 8 x 32 or 16 x 16, as in all files of the authors."""
    path = tmp_path / 'bare.pth'
    torch.save(without_metadata(pola_pvt(64)), path)
    model = PolaPVT(ARCH, pretrain_img_size=size)
    with pytest.raises(CheckpointError) as raised:
        load_weights(model, path)
    shape = list(model.stages[0].pos_embed.shape)
    line = f'stages.0.pos_embed expected {shape} for {tokens} tokens, got [1, 256, 8] for a grid'
    assert f'{line} that the file does not name' in str(raised.value)


def test_a_table_of_another_grid_is_not_taken_as_it_is(tmp_path):
    """Where tables are not resized: a whole model of MMEngine must have its own."""
    weights = pola_pvt(WIDE).state_dict()
    report = compare(PolaPVT(ARCH, pretrain_img_size=64), weights, 'file', exact=True)
    (line,) = [line for line in report.wrong_shape if line.startswith('stages.0.pos_embed ')]
    assert 'for 16 x 16 tokens, got [1, 256, 8] for 8 x 32 tokens' in line


@pytest.mark.parametrize('grid', [(16, 17), None])
def test_a_grid_that_does_not_fit_its_table_is_ignored(grid, tmp_path):
    """A user has resized the table, and has left the metadata as it was."""
    weights = pola_pvt(64).state_dict()
    weights._metadata['stages.0']['position_tables']['pos_embed'] = grid
    torch.save(weights, tmp_path / 'weights.pth')
    assert 'stages.0.pos_embed' not in saved_grids(weights)
    model = PolaPVT(ARCH, pretrain_img_size=64)
    load_weights(model, tmp_path / 'weights.pth')
    assert_same(model.state_dict(), weights)


GOLDEN_ARCH = {
    'embed_dims': (4, 4, 4, 4),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 1, 1, 1),
    'mlp_ratios': (1, 1, 1, 1),
}


@pytest.mark.parametrize('load', [load_weights, PolaPVT.load_state_dict])
@pytest.mark.parametrize('name', ['wide_images.pt', 'wide_images.safetensors'])
def test_grids_in_older_files_are_read(name, load, root):
    """The first stage of a model for images of 16 x 64: 4 x 16 tokens, 2 x 8 keys.

    As many as a square image of 32 pixels has.
    """
    path = root / 'tests' / 'golden' / name
    given = read_checkpoint(path)
    model = PolaPVT(
        GOLDEN_ARCH, pretrain_img_size=32, out_indices=(0,), pola_sr_ratios=(2, 1, 1, 1)
    )
    load(model, path if load is load_weights else given)
    for key, source, target in (
        ('stages.0.pos_embed', (4, 16), (8, 8)),
        ('stages.0.blocks.0.attn.positional_encoding', (2, 8), (4, 4)),
    ):
        expected = resized(given[key], source, target, 'bilinear')
        torch.testing.assert_close(model.get_parameter(key).data, expected)
