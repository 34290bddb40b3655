"""A detector and a segmenter whose configs have classes as types run through every script."""

import json

import pytest
from mmengine.config import Config

from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.openmmlab.config.read import load_config
from tests.helpers.processes import run_script
from tests.helpers.python_style import write_in_python_style

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs')]

ENDS = {'detector': ('max_epochs', 'epoch'), 'segmenter': ('max_iters', 'iter')}
"""Setting of the length of training, and the word in names of checkpoints."""


@pytest.fixture
def config(request, tiny_config, tiny_segmentation, tmp_path):
    """A config in Python's own style, with MMEngine's own loop and checkpoint hook."""
    source = tiny_config if request.param == 'detector' else tiny_segmentation
    cfg = Config.fromfile(source)
    setting, word = ENDS[request.param]
    loop = 'EpochBasedTrainLoop' if word == 'epoch' else 'IterBasedTrainLoop'
    cfg.train_cfg = {'type': loop, setting: 1, 'val_interval': 1}
    cfg.default_hooks = {'visualization': cfg.default_hooks.visualization}
    if word == 'iter':
        checkpoint = {'type': 'CheckpointHook', 'by_epoch': False, 'interval': 1}
        cfg.default_hooks['checkpoint'] = checkpoint
    cfg.param_scheduler = []
    cfg.model.backbone.attn_types = 'LSSS'  # recorded in half the time
    return write_in_python_style(cfg, tmp_path, 'classes')


def last_line(capsys):
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize('config', list(ENDS), indirect=True)
def test_every_script_reads_a_config_with_classes(config, shapes, tmp_path, capsys):
    is_detector = 'MaskRCNN' in config.with_name('classes_model.py').read_text()
    setting, word = ENDS['detector' if is_detector else 'segmenter']
    work = tmp_path / 'work'
    assert run_script('check_data', config) == 0
    assert run_script('train', config, '--work-dir', work) == 0
    checkpoint = work / f'{word}_1.pth'
    assert (work / 'last_checkpoint').read_text() == str(checkpoint)
    read_checkpoint(checkpoint)

    longer = ('--cfg-options', f'train_cfg.{setting}=2')
    assert run_script('train', config, '--work-dir', work, '--resume', *longer) == 0
    assert read_checkpoint(work / f'{word}_2.pth')['meta'][word] == 2
    written = work / 'classes.py'
    longer = ('--cfg-options', f'train_cfg.{setting}=3')
    assert run_script('train', written, '--work-dir', work, '--resume', *longer) == 0
    assert read_checkpoint(work / f'{word}_3.pth')['meta'][word] == 3

    drawn = tmp_path / 'drawn'
    tests = []
    for number, path in enumerate((config, written)):
        folder = tmp_path / f'test{number}'
        arguments = (path, checkpoint, '--work-dir', folder, '--show-dir', drawn)
        assert run_script('test', *arguments) == 0
        (metrics,) = folder.glob('*/*.json')
        found = json.loads(metrics.read_text())
        tests.append({key: value for key, value in found.items() if 'time' not in key})
    assert tests[0] == tests[1]
    assert [path for path in drawn.rglob('*') if path.is_file()]

    images = sorted((shapes / 'coco' / 'val2017').iterdir())[:1]
    capsys.readouterr()
    out = tmp_path / 'out'
    assert run_script('predict', config, checkpoint, *images, '--out', out) == 0
    assert last_line(capsys) == f'1 image done, 0 skipped; see {out}/vis'
    layer = ('--layers', 'stages.0.blocks.0.attn')
    assert run_script('analyze', config, checkpoint, *images, '--out', out, *layer) == 0
    if not is_detector:  # with a detector, only its backbone would be exported
        assert run_script('export', config, checkpoint, out / 'out.onnx') == 0
    assert run_script('convert_checkpoint', '--whole', checkpoint, out / 'whole.pth') == 0
    assert run_script('get_flops', config) == 0
    assert ('800 x 1280' in last_line(capsys)) == is_detector


def test_the_variables_of_a_file_do_not_reach_the_config_of_a_run(tiny_config):
    """As text they would be a call of `environ`, with what the environment has of secrets."""
    with tiny_config.open('a') as file:
        file.write(
            "environ = __import__('os').environ\nfolder = __import__('pathlib').Path('data')\n"
        )
    cfg = load_config(type('Arguments', (), {'config': str(tiny_config), 'cfg_options': None}))
    assert 'environ' not in cfg
    assert 'folder' not in cfg
    assert Config.fromstring(cfg.pretty_text, '.py').to_dict() == cfg.to_dict()
