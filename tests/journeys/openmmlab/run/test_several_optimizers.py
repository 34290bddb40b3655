"""A model with an optimizer for each of its parts is interrupted and resumed exactly."""

import pytest
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch.optim import SGD, AdamW

from mmpola.openmmlab.run.loops import accumulated_steps
from mmpola.pretraining.image_classifier import ImageClassifier
from mmpola.registry import MODELS
from tests.helpers.training import Batches, Signal, assert_same, run, saved, small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@MODELS.register_module()
class WithTwoOptimizers(ImageClassifier):
    """A classifier whose backbone and head have an optimizer each."""

    def train_step(self, data, optim_wrapper):
        data = self.data_preprocessor(data, training=True)
        loss = self(**data, mode='loss')['loss']
        parts = list(optim_wrapper.values())
        parts[0].backward(parts[0].scale_loss(loss))
        for part in parts:
            part._inner_count += part is not parts[0]
            if part.should_update():
                part.step()
                part.zero_grad()
        return {'loss': loss}


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class TwoOptimizers:
    """Builds them: AdamW for the backbone, SGD for the head."""

    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None):
        self.counts = optim_wrapper_cfg['counts']

    def __call__(self, model):
        backbone = list(model.backbone.parameters())
        known = {id(parameter) for parameter in backbone}
        head = [parameter for parameter in model.parameters() if id(parameter) not in known]
        first, second = self.counts
        return OptimWrapperDict(
            backbone=OptimWrapper(AdamW(backbone, lr=1e-3), accumulative_counts=first),
            head=OptimWrapper(SGD(head, lr=1e-2), accumulative_counts=second),
        )


def two(colours, work_dir):
    cfg = small_config(colours, work_dir)
    cfg.model.type = 'mmpola.WithTwoOptimizers'
    cfg.optim_wrapper = {'constructor': 'TwoOptimizers', 'counts': (2, 3)}
    cfg.auto_scale_lr.enable = False
    return cfg


@pytest.mark.slow
def test_resuming_ends_with_the_same_bits(colours, tmp_path):
    run(two(colours, tmp_path / 'whole'))
    before = Batches()
    with pytest.raises(SystemExit) as raised:
        run(two(colours, tmp_path / 'parts'), before, Signal(step=7))
    assert raised.value.code == 75
    assert len(before.seen) == 12  # both have made a step after 12
    run(two(colours, tmp_path / 'parts'), resume=True)
    parts, whole = (saved(tmp_path / name / 'epoch_3.pth') for name in ('parts', 'whole'))
    assert_same(parts, whole)


def test_steps_after_which_no_gradient_is_left():
    model = ImageClassifier({'type': 'mmpola.PolaSwin', 'arch': 'tiny'}, 3)
    wrappers = TwoOptimizers({'counts': (4, 6)})(model)
    assert accumulated_steps(wrappers) == 12
    assert accumulated_steps(wrappers['head']) == 6
