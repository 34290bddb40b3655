"""The detectors and the segmenter outside the papers train and predict through the scripts.

Their backbone is compiled, without compiling it, which takes long and is tested in
tests/journeys/pretraining/test_compile_backbone.py.
"""

import pytest
import torch
from mmengine.config import Config

from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.start.fit import fit_checkpoint, read_training_checkpoint
from tests.helpers.configs import OTHER_HEADS, shrink
from tests.helpers.processes import run_script

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.mark.slow
@pytest.mark.parametrize('name', OTHER_HEADS)
def test_train_and_predict(name, root, shapes, tmp_path):
    """A step and an evaluation run; --resume accepts the checkpoint."""
    cfg = shrink(Config.fromfile(root / 'configs' / f'{name}.py'), shapes, tmp_path)
    unit = 'epoch' if 'max_epochs' in cfg.train_cfg else 'iter'
    cfg.train_dataloader.batch_size = 2  # as many as there are images
    config, work, out = tmp_path / f'{name}.py', tmp_path / 'work', tmp_path / 'out'
    cfg.dump(config)
    checkpoint = work / f'{unit}_1.pth'
    images = shapes / ('ade/images/validation' if 'segformer' in name else 'coco/val2017')
    with torch.compiler.set_stance('force_eager'):
        assert run_script('train', config, '--compile') == 0
        assert run_script('predict', config, checkpoint, images, '--out', out, '--compile') == 0
    written = read_training_checkpoint(checkpoint)
    assert written.content['meta']['iter'] == 1
    fit_checkpoint(written, build_model(cfg))
    assert len(list((out / 'preds').iterdir())) == 4
    assert len(list((out / 'vis').iterdir())) == 4
