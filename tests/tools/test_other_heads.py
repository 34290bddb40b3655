"""The detectors and the segmenter outside the papers: train, resume, test and predict through the
scripts.

All but the first training have a compiled backbone, without compiling it, which takes long and is
tested in tests/engine/hooks/test_compile_backbone.py.
"""

import pytest
import torch
from mmengine.config import Config

from tests.helpers.configs import OTHER_HEADS, shrink
from tests.helpers.processes import run_script

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.mark.slow
@pytest.mark.parametrize('name', OTHER_HEADS)
def test_train_resume_test_and_predict(name, root, shapes, tmp_path):
    cfg = shrink(Config.fromfile(root / 'configs' / f'{name}.py'), shapes, tmp_path)
    unit = 'epoch' if 'max_epochs' in cfg.train_cfg else 'iter'
    cfg.default_hooks.checkpoint.interval = 1
    cfg.train_dataloader.batch_size = 2  # as many as there are images
    config, work, out = tmp_path / f'{name}.py', tmp_path / 'work', tmp_path / 'out'
    cfg.dump(config)
    assert run_script('train', config) == 0
    with torch.compiler.set_stance('force_eager'):
        assert (
            run_script(
                'train',
                config,
                '--resume',
                '--compile',
                '--cfg-options',
                f'train_cfg.max_{unit}s=2',
            )
            == 0
        )
        checkpoint = work / f'{unit}_2.pth'
        assert (
            run_script('test', config, checkpoint, '--compile', '--work-dir', tmp_path / 'tested')
            == 0
        )
        images = shapes / ('ade/images/validation' if 'segformer' in name else 'coco/val2017')
        assert run_script('predict', config, checkpoint, images, '--out', out, '--compile') == 0
    first, last = (
        torch.load(path, map_location='cpu', weights_only=False)
        for path in (work / f'{unit}_1.pth', checkpoint)
    )
    assert (first['meta']['iter'], last['meta']['iter']) == (1, 2)
    assert first['state_dict'].keys() == last['state_dict'].keys()
    learned = [
        key
        for key in first['state_dict']
        if key.startswith('backbone.') and key.endswith('.weight')
    ]
    assert not all(
        torch.equal(first['state_dict'][key], last['state_dict'][key]) for key in learned
    )
    assert len(list((out / 'preds').iterdir())) == 4
    assert len(list((out / 'vis').iterdir())) == 4
