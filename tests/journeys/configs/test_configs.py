"""One config per model trains, evaluates and can be resumed; one reads real COCO images."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner, find_latest_checkpoint

from mmpola.openmmlab.config.contents import nodes
from mmpola.openmmlab.start import fit as training_checkpoint
from tests.helpers import ROOT
from tests.helpers.configs import DENSE, OTHER_HEADS, shrink

pytestmark = pytest.mark.usefixtures('unformatted_configs')


def representatives():
    """Return the papers' configs that have each model once, and each family in both tasks.

    The last ones by name, because a 3x schedule has crops, which 1x lacks.
    """
    chosen = []
    met = set()
    for row in sorted(DENSE, key=lambda row: row.config, reverse=True):
        cfg = Config.fromfile(ROOT / 'configs' / f'{row.config}.py')
        kinds = {row.model, (cfg.model.backbone.type, row.data)}
        if row.config not in OTHER_HEADS and not kinds <= met:
            chosen.append(row.config)
            met |= kinds
    return chosen


def assert_every_parameter_learns(model, data):
    """The losses of a batch are finite, and give each parameter that is trained a gradient."""
    loss, parts = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    assert all(torch.isfinite(value) for value in parts.values())
    assert [
        name for name, p in model.named_parameters() if p.requires_grad and p.grad is None
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize('name', [*representatives(), *OTHER_HEADS])
def test_each_model_trains_evaluates_and_can_be_resumed(name, root, shapes, tmp_path):
    """Every parameter gets a gradient, as DistributedDataParallel requires; a step and an
    evaluation run; --resume and
    test.py accept the checkpoint, which contains MMEngine's schedulers and log. Configs of
    test_other_heads.py, which trains them through the script, only get gradients here.
    """
    cfg = shrink(Config.fromfile(root / 'configs' / f'{name}.py'), shapes, tmp_path)
    cfg.randomness = {'seed': 0}
    runner = Runner.from_cfg(cfg)
    model = runner.model.train()
    # mmdet builds some embeddings from uninitialised memory, whose gradients may be infinite
    model.init_weights()
    data = model.data_preprocessor(
        next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0))), training=True
    )
    assert_every_parameter_learns(model, data)
    if name in OTHER_HEADS:
        return
    model.zero_grad()
    before = {name: p.detach().clone() for name, p in model.backbone.named_parameters()}
    runner.train()
    assert any(not torch.equal(p, before[name]) for name, p in model.backbone.named_parameters())
    metric = 'coco/bbox_mAP' if cfg.default_scope == 'mmdet' else 'mIoU'
    assert f'val/{metric}' in runner.message_hub.log_scalars
    written = training_checkpoint.read_training_checkpoint(find_latest_checkpoint(cfg.work_dir))
    training_checkpoint.fit_checkpoint(written, model)
    schedulers = cfg.param_scheduler
    assert len(written.content['param_schedulers']) == (
        len(schedulers) if isinstance(schedulers, list) else 1
    )


@pytest.mark.slow
@pytest.mark.real_data
def test_a_training_step_on_real_coco_images(root, real_data):
    """The real Pola-Swin-T config on coco_mini at a short side of 160: finite losses, gradients
    everywhere.
    """
    cfg = Config.fromfile(root / 'configs' / 'mask_rcnn_pola_swin_t_1x.py')
    init_default_scope(cfg.default_scope)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.dataset.data_root = f'{real_data}/coco_mini/'
    for _, node in nodes(cfg.train_dataloader, 'train_dataloader'):
        if 'scales' in node:
            node['scales'] = [(266, 160)]
        if 'crop_size' in node:
            node['crop_size'] = (80, 120)
    cfg.model.train_cfg.rcnn.sampler.num = 64  # of 512, which take ten seconds
    loader = Runner.build_dataloader(cfg.train_dataloader, seed=0)
    model = MODELS.build(cfg.model)
    data = model.data_preprocessor(next(iter(loader)), training=True)
    assert_every_parameter_learns(model, data)
