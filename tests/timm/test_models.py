"""The models in timm: names, timm's keyword arguments, and what its scripts and optimizers call."""

import json

import pytest
import timm
import timm.data
import timm.optim
import torch
from timm.models import group_modules, group_parameters
from torch.testing import assert_close

import mmpola.timm
from mmpola.checkpoint.hub import MODELS_WITH_WEIGHTS
from mmpola.layers import position_tables
from mmpola.zoo import NAMED
from tests.helpers.models import PLUS, SMALL, SWIN, images


@pytest.mark.parametrize('name', NAMED)
def test_every_model_is_registered(name):
    assert timm.is_model(name)
    entry_point = getattr(mmpola.timm, name)
    assert entry_point.__name__ == name
    assert timm.models.model_entrypoint(name) is entry_point
    with torch.device('meta'):
        model = timm.create_model(name, num_classes=7)
    assert model.num_classes == 7
    assert model.get_classifier().weight.shape[:2] == (7, model.head_hidden_size)
    config = timm.data.resolve_model_data_config(model)
    size, crop_pct, crop_mode = (224, 0.875, 'squash')
    if name.endswith('384'):
        size, crop_pct = (384, 1.0)
    elif name.endswith('nano'):
        size, crop_pct, crop_mode = (96, 1.0, 'center')
    assert config['input_size'] == (3, size, size)
    assert config['crop_pct'] == crop_pct
    assert config['interpolation'] == 'bicubic'
    assert config['crop_mode'] == crop_mode
    weights = model.state_dict()
    first_conv = model.default_cfg['first_conv']
    assert isinstance(model.get_submodule(first_conv), torch.nn.Conv2d)
    assert {f'{first_conv}.weight', f'{model.default_cfg["classifier"]}.weight'} <= weights.keys()
    has_weights = name in MODELS_WITH_WEIGHTS
    assert model.default_cfg['url'] == (f'mmpola://{name}' if has_weights else '')
    assert timm.models.is_model_pretrained(name) == has_weights
    assert model.default_cfg == model.pretrained_cfg


def test_timm_lists_exactly_the_named_models():
    assert set(timm.list_models('pola*')) == set(NAMED)


def test_takes_the_keyword_arguments_of_timm():
    model = timm.create_model(
        'pola_swin_tiny', num_classes=10, in_chans=1, drop_path_rate=0.4, **SWIN
    ).eval()
    assert model(images(2, 1, 48, 80)).shape == (2, 10)
    rates = [m.drop_prob for m in model.modules() if type(m).__name__ == 'DropPath']
    assert max(rates) == pytest.approx(0.4)
    assert model.backbone.stages[0].blocks[0].attn.grid == (16, 16)


def test_gates_can_start_open():
    model = timm.create_model('pola_swin_tiny', gate_init='open', **SWIN)
    attention = model.backbone.stages[0].blocks[0].attn
    assert not attention.qkvg.weight[-attention.dim :].any()
    assert (attention.qkvg.bias[-attention.dim :] == 1).all()


@pytest.mark.parametrize(('name', 'small'), [('pola_swin_tiny', SWIN), ('polaformer_pp_b0', PLUS)])
def test_the_head_can_be_removed_and_replaced(name, small):
    model = timm.create_model(name, num_classes=10, **small).double().eval()
    x = images(2, 3, 64, 64).double()
    features = model.forward_features(x)
    assert features.shape == (2, model.backbone.embed_dims[-1], 2, 2)
    assert_close(model.forward_head(features), model(x))
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.head_hidden_size)
    model.reset_classifier(4)
    assert model.num_classes == 4
    assert model(x).shape == (2, 4)  # the new head has the dtype of the backbone
    model.reset_classifier(0)
    assert_close(model(x), pooled)
    assert_close(timm.create_model(name, num_classes=0, **small).double()(x).shape, pooled.shape)


def test_unknown_arguments_and_values_are_refused():
    for features_only in (False, True):
        with pytest.raises(TypeError, match='windows'):
            timm.create_model('pola_swin_tiny', features_only=features_only, windows=3, **SWIN)
    with pytest.raises(ValueError, match=r"^global_pool: expected 'avg' or ''"):
        timm.create_model('pola_swin_tiny', global_pool='max', **SWIN)


def test_activations_are_recomputed_if_timm_asks_for_it():
    model = timm.create_model('pola_swin_tiny', **SWIN)
    for enable in (True, False):
        model.set_grad_checkpointing(enable)
        assert model.backbone.with_cp == enable


def test_device_and_dtype():
    model = timm.create_model('polaformer_pp_b0', device='meta', dtype=torch.bfloat16, **PLUS)
    tensors = list(model.parameters()) + list(model.buffers())
    assert {x.device.type for x in tensors} == {'meta'}
    assert {x.dtype for x in tensors if x.is_floating_point()} == {torch.bfloat16}


@pytest.mark.parametrize('name', SMALL)
def test_another_input_size(name):
    """The tables are resized as the forward pass would do at that size; frozen ones stay frozen."""
    model = timm.create_model(name, num_classes=3, **SMALL[name]).eval()
    x = images(1, 3, 96, 128)
    for key in position_tables(model):
        torch.nn.init.normal_(model.get_parameter(key))
    model.backbone.requires_grad_(False)
    expected = model(x)
    model.set_input_size((96, 128))
    assert_close(model(x), expected, rtol=0, atol=0)
    grids = position_tables(model)
    assert bool(grids) == (name != 'polaformer_pp_b0')
    for key, (rows, columns) in grids.items():
        assert model.get_parameter(key).shape[1] == rows * columns
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())
    tables = [model.get_parameter(key) for key in grids]
    model.set_input_size((96, 128))
    assert [model.get_parameter(key) for key in grids] == tables  # the same parameters
    assert model.train()(x).shape == (1, 3)


def test_the_input_size_is_saved_for_the_hub(tmp_path):
    model = timm.create_model('pola_swin_tiny', **SWIN)
    model.set_input_size((64, 96))
    timm.models.save_for_hf(model, tmp_path)
    config = json.loads((tmp_path / 'config.json').read_text())
    assert config['model_args']['img_size'] == [64, 96]


def test_weight_decay_and_layer_decay_of_timms_optimizers():
    """1 + 1 + 1 + 1 blocks: layer 0 is the stem, 1 ... 4 the blocks, 5 the rest."""
    for name, small in SMALL.items():
        model = timm.create_model(name, num_classes=3, **small)
        optimizer = timm.optim.create_optimizer_v2(
            model, opt='adamw', lr=1.0, weight_decay=0.05, layer_decay=0.5
        )
        names = {id(parameter): key for key, parameter in model.named_parameters()}
        groups = {
            names[id(parameter)]: (group['lr_scale'], group['weight_decay'])
            for group in optimizer.param_groups
            for parameter in group['params']
        }
        assert groups.keys() == set(names.values())
        assert groups['head.weight'] == (1.0, 0.05)
        assert groups[f'{model.default_cfg["first_conv"]}.weight'] == (0.5**5, 0.05)
        exempt = (
            'power',
            'scale',
            's1',
            's2',
            'positional_encoding',
            'bias_table',
            'gamma_1',
            'gamma_2',
        )
        for key, (_, decay) in groups.items():
            is_vector = model.get_parameter(key).ndim == 1
            if key.endswith(exempt) or '.pos_embed' in key or is_vector:
                assert decay == 0.0, key
            else:
                assert decay == 0.05, key
        for block in {key.split('.attn.')[0] for key in groups if '.attn.' in key}:
            scales = {scale for key, (scale, _) in groups.items() if key.startswith(f'{block}.')}
            assert len(scales) == 1, block


@pytest.mark.parametrize('name', SMALL)
def test_modules_are_grouped_like_parameters(name):
    model = timm.create_model(name, **SMALL[name])
    groups = group_modules(model, model.group_matcher())
    assert sorted(groups) == [0, 1, 2, 3, 4, 5]
    assert model.default_cfg['first_conv'] in groups[0]
    assert 'head' in groups[5]


def test_stages_as_groups():
    model = timm.create_model('pola_swin_tiny', **SWIN)
    groups = group_parameters(model, model.group_matcher(coarse=True))
    assert sorted(groups) == [0, 1, 2, 3, 4, 5]
    assert {key.split('.')[0] for key in groups[5]} == {'norm', 'head'}
    assert all(key.startswith('backbone.stages.1.') for key in groups[2])
