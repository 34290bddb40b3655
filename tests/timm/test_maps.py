"""The maps of models in timm: features_only, forward_intermediates, pruning, pooling, torch.fx."""

import copy

import pytest
import timm
import torch
import torchvision.models.feature_extraction
from timm.models._features import FeatureDictNet, FeatureGetterNet, FeatureListNet
from torch.testing import assert_close

import mmpola.timm  # noqa: F401  # registers the models
from tests.helpers.models import SMALL, SWIN, images


def test_the_head_reads_the_last_of_the_features(tmp_path):
    model = timm.create_model('pola_swin_tiny', **SWIN).eval()
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    features = timm.create_model(
        'pola_swin_tiny', features_only=True, checkpoint_path=str(tmp_path / 'weights.pth'), **SWIN
    ).eval()
    x = images(1, 3, 64, 64)
    assert_close(model.normed(features(x)[-1]), model.forward_features(x), rtol=0, atol=0)
    assert len(features(x)) == 4


@pytest.mark.parametrize('name', SMALL)
def test_every_feature_class_of_timm(name):
    arguments = {'features_only': True, **SMALL[name]}
    torch.manual_seed(0)
    expected = timm.create_model(name, **arguments).eval()
    x = images(1, 3, 64, 96)
    maps = expected(x)
    info = expected.feature_info
    strides_and_channels = zip(info.reduction(), info.channels(), strict=True)
    assert [tuple(y.shape) for y in maps] == [
        (1, channels, 64 // stride, 96 // stride) for stride, channels in strides_and_channels
    ]
    sum(y.square().sum() for y in maps).backward()
    assert [key for key, parameter in expected.named_parameters() if parameter.grad is None] == []
    stages = list(expected.backbone.out_indices)
    for feature_cls in ('list', 'hook', FeatureListNet):
        torch.manual_seed(0)
        model = timm.create_model(name, feature_cls=feature_cls, **arguments).eval()
        assert_close(model(x), maps, rtol=0, atol=0)
    for feature_cls in ('dict', FeatureDictNet):
        torch.manual_seed(0)
        model = timm.create_model(name, feature_cls=feature_cls, **arguments).eval()
        named = model(x)
        assert list(named) == [str(stage) for stage in stages]
        assert_close(list(named.values()), maps, rtol=0, atol=0)

    model = timm.create_model(name, feature_cls='getter', **arguments).eval()
    whole = timm.create_model(name, **SMALL[name]).eval()
    assert isinstance(model, FeatureGetterNet)
    whole.load_state_dict(model.model.state_dict(), strict=False)
    raw = whole.forward_intermediates(x, indices=stages, intermediates_only=True)
    assert_close(model(x), raw, rtol=0, atol=0)
    assert model.feature_info.channels() == expected.feature_info.channels()
    assert model.feature_info.reduction() == expected.feature_info.reduction()
    assert model.in_chans == 3
    assert model.pretrained_cfg['architecture'] == name


def test_the_getter_takes_stages_weights_and_channels(tmp_path):
    trained = timm.create_model('pola_swin_tiny', num_classes=9, **SWIN)
    torch.save(trained.state_dict(), tmp_path / 'trained.pth')
    model = timm.create_model(
        'pola_swin_tiny',
        pretrained=True,
        pretrained_cfg_overlay={'file': str(tmp_path / 'trained.pth')},
        features_only=True,
        feature_cls='getter',
        out_indices=(0, -2),
        **SWIN,
    )
    x = images(1, 3, 64, 64)
    expected = trained.eval().forward_intermediates(x, indices=[0, 2], intermediates_only=True)
    assert_close(model.eval()(x), expected, rtol=0, atol=0)
    assert model.feature_info.reduction() == [4, 16]
    unused = [key for key in model.state_dict() if 'head' in key or 'stages.3' in key]
    assert unused == []


def test_other_feature_classes_are_refused():
    with pytest.raises(ValueError, match=r"^feature_cls: expected one of .*'getter'\], got 'fx'"):
        timm.create_model('pola_swin_tiny', features_only=True, feature_cls='fx', **SWIN)


@pytest.mark.parametrize('name', SMALL)
def test_every_stage_is_described(name):
    """The named module's output is the tokens of the map that `forward_intermediates` returns."""
    model = timm.create_model(name, **SMALL[name]).eval()
    x = images(1, 3, 64, 64)
    outputs = {}
    for info in model.feature_info:
        module = model.get_submodule(info['module'])
        module.register_forward_hook(
            lambda _, args, output, key=info['module']: outputs.update({key: output})
        )
    with torch.no_grad():
        maps = model.forward_intermediates(x, intermediates_only=True)
    assert len(maps) == len(model.feature_info) == model.backbone.num_stages
    for info, taken in zip(model.feature_info, maps, strict=True):
        side = 64 // info['reduction']
        assert taken.shape == (1, info['num_chs'], side, side)
        assert_close(taken.flatten(2).transpose(1, 2), outputs[info['module']], rtol=0, atol=0)
    assert model.num_features == maps[-1].shape[1]


@pytest.mark.parametrize('name', SMALL)
def test_intermediates_and_features_are_those_of_the_forward_pass(name):
    model = timm.create_model(name, num_classes=3, **SMALL[name]).eval()
    x = images(1, 3, 64, 96)
    with torch.no_grad():
        features, maps = model.forward_intermediates(x)
        assert_close(features, model.forward_features(x))
        assert_close(model.forward_head(features), model(x))
        last = model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)
        assert_close(last, [features])
        pair = model.forward_intermediates(
            x, indices=[0, -1], output_fmt='NHWC', intermediates_only=True
        )
        assert_close(pair, [maps[0].permute(0, 2, 3, 1), maps[-1].permute(0, 2, 3, 1)])
        tokens = model.forward_intermediates(
            x, indices=[1], output_fmt='NLC', intermediates_only=True
        )
        assert_close(tokens, [maps[1].flatten(2).transpose(1, 2)])


def test_the_norm_of_intermediates_is_that_of_the_last_width():
    """As in timm: it is applied to every block of a DeiT, and to the last stage of a Swin."""
    x = images(1, 3, 64, 64)
    for name, normed in (
        ('pola_deit_tiny', [True] * 4),
        ('pola_swin_tiny', [False, False, False, True]),
    ):
        model = timm.create_model(name, **SMALL[name]).eval()
        with torch.no_grad():
            raw, after = (
                model.forward_intermediates(x, norm=norm, intermediates_only=True)
                for norm in (False, True)
            )
        assert [not torch.equal(before, y) for before, y in zip(raw, after, strict=True)] == normed


def test_stopping_early_skips_the_later_stages():
    model = timm.create_model('pola_swin_tiny', **SWIN).eval()
    ran = []
    for index, stage in enumerate(model.backbone.stages):
        stage.register_forward_hook(lambda *_, index=index: ran.append(index))
    last, maps = model.forward_intermediates(images(1, 3, 64, 64), indices=[0, 1], stop_early=True)
    assert ran == [0, 1]
    assert_close(last, maps[-1], rtol=0, atol=0)


def test_every_image_size_is_taken_whatever_timm_calls_it():
    options = {'dynamic_img_size': True, 'strict_img_size': False}
    for others in ({}, {'features_only': True, 'feature_cls': 'list'}):
        timm.create_model('pola_swin_tiny', **options, **others, **SWIN)(images(1, 3, 40, 56))


def test_a_deit_gives_as_many_maps_as_timms():
    expected = timm.create_model('deit_tiny_patch16_224', features_only=True).feature_info
    found = timm.create_model('pola_deit_tiny', features_only=True).feature_info
    assert found.channels() == expected.channels()
    assert found.reduction() == expected.reduction()
    assert list(found.out_indices) == list(expected.out_indices)


@pytest.mark.parametrize('indices', [[4], [-5], 5, 0])
def test_stages_that_do_not_exist(indices):
    model = timm.create_model('pola_swin_tiny', **SWIN)
    with pytest.raises(AssertionError, match='out of range'):
        model.forward_intermediates(images(1, 3, 64, 64), indices=indices)


@pytest.mark.parametrize('name', SMALL)
def test_pruning_leaves_the_maps_and_no_unused_parameter(name):
    model = timm.create_model(name, num_classes=5, **SMALL[name]).eval()
    x = images(2, 3, 64, 64)
    maps = model.forward_intermediates(x, intermediates_only=True)
    for indices, prune_norm in (([0], False), ([-1], False), ([1, -2], True)):
        pruned = copy.deepcopy(model)
        wanted = pruned.prune_intermediate_layers(indices, prune_norm=prune_norm)
        assert wanted == [index % 4 for index in indices]
        assert len(pruned.feature_info) == pruned.backbone.num_stages == max(wanted) + 1
        found = pruned.forward_intermediates(
            x, indices=wanted, norm=not prune_norm, intermediates_only=True
        )
        if wanted != [3]:  # the norm goes with the last stage
            assert_close(found, [maps[index] for index in wanted], rtol=0, atol=0)
        sum(y.square().sum() for y in found).backward()
        assert [key for key, parameter in pruned.named_parameters() if parameter.grad is None] == []
        channels = model.feature_info[wanted[-1]]['num_chs']
        assert pruned.num_features == pruned.head_hidden_size == channels
        assert pruned(x).shape == (2, channels, *found[-1].shape[2:])
        pruned.reset_classifier(7, 'avg')
        assert pruned(x).shape == (2, 7)


@pytest.mark.parametrize('name', SMALL)
def test_without_global_pooling(name):
    model = timm.create_model(name, num_classes=3, global_pool='', **SMALL[name]).eval()
    x = images(1, 3, 64, 64)
    logits = model(x)
    side = 64 // model.feature_info[-1]['reduction']
    assert logits.shape == (1, 3, side, side)
    hidden = model.forward_head(model.forward_features(x), pre_logits=True)
    assert hidden.shape == (1, model.head_hidden_size, side, side)
    pooled = timm.create_model(name, num_classes=3, **SMALL[name]).eval()
    pooled.load_state_dict(model.state_dict())
    assert_close(logits.mean((2, 3)), pooled(x), rtol=1e-4, atol=1e-6)  # the head is linear
    model.reset_classifier(0)
    assert model.global_pool == ''
    assert model(x).shape == (1, model.head_hidden_size, side, side)


@pytest.mark.parametrize(
    ('indices', 'strides'), [((-2, -1), [16, 32]), (3, [8, 16, 32]), ((1, -1), [8, 32])]
)
def test_negative_and_counted_out_indices(indices, strides):
    model = timm.create_model('pola_swin_tiny', features_only=True, out_indices=indices, **SWIN)
    assert model.feature_info.reduction() == strides
    assert [64 // x.shape[2] for x in model(images(1, 3, 64, 64))] == strides


@pytest.mark.parametrize('extraction', [timm.models, torchvision.models.feature_extraction])
@pytest.mark.parametrize('name', SMALL)
def test_feature_extraction_records_the_backbone_as_one_node(name, extraction):
    model = timm.create_model(name, num_classes=3, **SMALL[name]).eval()
    x = images(1, 3, 64, 64)
    nodes = extraction.get_graph_node_names(model)[1]
    assert 'backbone' in nodes
    assert not any(node.startswith('backbone.') for node in nodes)
    traced = extraction.create_feature_extractor(model, {nodes[-1]: 'logits'})
    assert_close(traced(x)['logits'], model(x))


@pytest.mark.parametrize('name', SMALL)
def test_a_model_traced_by_torch_fx_takes_any_size(name):
    model = timm.create_model(name, num_classes=3, **SMALL[name]).eval()
    features = timm.create_model(name, features_only=True, **SMALL[name]).eval()
    for net in (model, features):
        traced = torch.fx.symbolic_trace(net)
        for x in (images(1, 3, 64, 64), images(2, 3, 33, 47)):
            assert_close(traced(x), net(x))
