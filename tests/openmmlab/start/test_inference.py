"""Building a config's model with the weights of a checkpoint."""

import copy

import pytest
import torch
from mmengine.config import Config
from torch import nn

from mmpola.openmmlab.config.build import build_model, unwrapped
from mmpola.openmmlab.start.fit import TrainingCheckpoint, load_model, read_checkpoint_for
from mmpola.registry import MODELS


@MODELS.register_module()
class NormalisedConvolution(nn.Module):
    """A model whose config names a file of weights that must not be read."""

    def __init__(self, init_cfg=None):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = nn.SyncBatchNorm(4)

    def init_weights(self):
        raise AssertionError('the file is read')


@MODELS.register_module()
class Augmented(nn.Module):
    """Wraps a model as test-time augmentation does."""

    def __init__(self, module):
        super().__init__()
        self.module = MODELS.build(module)


@MODELS.register_module()
class Versioned(nn.Linear):
    """Like mmdet's AnchorFreeHead, it has other names in a file that states no version."""

    _version = 2

    def __init__(self):
        super().__init__(1, 1)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *arguments):
        self.version = local_metadata.get('version')
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)


@pytest.mark.parametrize(
    'wrap', [lambda model: model, lambda model: nn.ModuleDict({'module': model})]
)
def test_load_hooks_get_the_versions_that_a_file_states(wrap, tmp_path):
    torch.save({'state_dict': wrap(Versioned()).state_dict()}, tmp_path / 'versioned.pth')
    cfg = Config({'model': {'type': 'mmpola.Versioned'}})
    model = build_model(cfg)
    checkpoint = read_checkpoint_for(tmp_path / 'versioned.pth', model)
    assert load_model(model, checkpoint).version == 2


@pytest.mark.parametrize('wrapped', [False, True])
def test_the_weights_are_loaded_for_inference_on_the_cpu(wrapped):
    weights = {
        name: torch.rand_like(x.float()) for name, x in NormalisedConvolution().state_dict().items()
    }
    del weights['norm.num_batches_tracked']
    inner = {
        'type': 'mmpola.NormalisedConvolution',
        'init_cfg': {'type': 'Pretrained', 'checkpoint': 'none.pth'},
    }
    cfg = Config({'model': {'type': 'mmpola.Augmented', 'module': inner} if wrapped else inner})
    before = copy.deepcopy(cfg.model)
    built = build_model(cfg)
    model = load_model(built, TrainingCheckpoint('random.pth', {}, weights))
    assert model is built
    assert cfg.model == before
    assert not model.training
    found = unwrapped(model).state_dict()
    for name, x in weights.items():
        torch.testing.assert_close(found[name], x)
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
