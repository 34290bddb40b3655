"""What the scripts refuse before any work is done, with their messages."""

import re
import sys

import pytest

from tests.helpers.processes import load_script, run_script
from tests.helpers.refusals import refusal as refusal_of

pytestmark = pytest.mark.usefixtures('unformatted_configs')

CONFIG = 'configs/mask_rcnn_pola_swin_t_1x.py'


@pytest.fixture
def refusal(capsys):
    """A function that runs a script, which must exit with status 2, and returns its error."""

    def of(tool, *arguments):
        assert run_script(tool, *arguments) == 2
        error = capsys.readouterr().err
        return error[error.index('error: ') :].rstrip()

    return of


def test_missing_data_says_which_folder(refusal, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    headline, *lines, advice = refusal('train', root / CONFIG).splitlines()
    assert headline == f'error: the data is not complete (looked from {tmp_path})'
    assert [line.strip().removesuffix(' [files-missing]') for line in lines] == [
        'train_dataloader: data/coco/annotations/instances_train2017.json: not found (ann_file)',
        'train_dataloader: data/coco/train2017: not found (data_prefix.img)',
        'val_dataloader: data/coco/annotations/instances_val2017.json: not found (ann_file)',
        'val_dataloader: data/coco/val2017: not found (data_prefix.img)',
        'val_evaluator.ann_file: data/coco/annotations/instances_val2017.json: not found',
    ]
    assert 'link it' in advice


@pytest.mark.parametrize(
    ('tool', 'arguments'), [('train', []), ('test', ['none.pth']), ('check_data', [])]
)
def test_mistakes_in_the_config_come_before_data_and_weights(
    refusal, tool, arguments, root, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    options = ('--cfg-options', 'model.backbone.arch=atto')
    message = refusal(tool, root / CONFIG, *arguments, *options)
    assert message.startswith('error: model: ValueError: arch: expected one of ')
    assert message.endswith(", got 'atto'")
    assert not list(tmp_path.iterdir())


PRETRAINED = """
start = dict(_delete_=True, type='Pretrained', checkpoint='checkpoints/pola_swin_t.pth')
model['backbone']['init_cfg'] = start
"""


@pytest.mark.parametrize(
    'resume', [[], ['--resume']]
)  # without a checkpoint to resume from, they are needed too
def test_missing_weights_say_where_they_are_found_and_how_to_train_without(
    tiny_config, resume, tmp_path, monkeypatch
):
    with open(tiny_config, 'a') as config:
        config.write(PRETRAINED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('sys.argv', ['train.py', str(tiny_config), *resume])
    message = refusal_of(load_script('train').main)
    assert message.startswith('checkpoints/pola_swin_t.pth: no such checkpoint file; ')
    assert 'mmpola://pola_swin_tiny (model.backbone.init_cfg.checkpoint)' in message
    assert message.endswith('--cfg-options model.backbone.init_cfg=None')
    assert not (tmp_path / 'work_dirs').exists()


NO_GPU = 'error: --amp: float16 needs a GPU'
NO_IMAGES = 'error: tests: no images in this folder'


@pytest.mark.parametrize(
    ('tool', 'arguments', 'message'),
    [
        ('train', ['configs/none.py'], 'error: configs/none.py: no such config file'),
        ('train', [CONFIG, '--resume', 'none.pth'], 'error: none.pth: no such checkpoint'),
        ('train', [CONFIG, '--amp'], NO_GPU),
        ('test', [CONFIG, 'none.pth'], 'error: none.pth: no such checkpoint'),
        ('predict', [CONFIG, 'none.pth', 'tests', '--out', 'none'], NO_IMAGES),
        ('dev/contact_sheet', ['configs', 'sheet.png'], 'error: configs: no images in this folder'),
    ],
)
def test_missing_files_are_named(refusal, root, tool, arguments, message, monkeypatch):
    monkeypatch.chdir(root)
    assert refusal(tool, *arguments).startswith(message)


@pytest.mark.parametrize('tool', ['dist_train.sh', 'dist_test.sh', 'slurm_train.sh'])
def test_launchers_say_their_usage(run_tool, tool):
    result = run_tool(tool, check=False)
    assert result.returncode == 2
    assert re.fullmatch(rf'usage: bash tools/{tool} .*CONFIG.*\n', result.stdout)


def test_a_missing_package_is_named_before_files_are_read(root, monkeypatch):
    monkeypatch.setitem(sys.modules, 'onnxscript', None)
    with pytest.raises(ModuleNotFoundError, match='onnxscript'):
        run_script('export', root / CONFIG, 'none.pth', 'none.onnx')
