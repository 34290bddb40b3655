"""What the scripts refuse before any work is done, with their messages."""

import shutil

import pytest

from tests.helpers.processes import load_script, run_script
from tests.helpers.refusals import assert_lines
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
    assert [line.strip() for line in lines] == [
        'train_dataloader: data/coco/annotations/instances_train2017.json: not found',
        'train_dataloader: data/coco/train2017: not found',
        'val_dataloader: data/coco/annotations/instances_val2017.json: not found',
        'val_dataloader: data/coco/val2017: not found',
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


def test_annotations_of_missing_images_are_named(refusal, tiny_config, shapes, tmp_path):
    copy = tmp_path / 'coco'
    shutil.copytree(shapes / 'coco', copy)
    gone = sorted((copy / 'train2017').iterdir())[:7]
    for image in gone:
        image.unlink()
    names = ', '.join(str(image) for image in gone[:5])
    annotations = copy / 'annotations' / 'instances_train2017.json'
    options = ['--cfg-options', f'train_dataloader.dataset.data_root={copy}/']
    line = refusal('train', tiny_config, *options).strip()
    start = f'error: the data is not valid: {annotations}: '
    assert_lines([line], (start, 'do not exist', f'(7): {names} and 2 more'))


NO_GPU = 'error: --amp: float16 needs a GPU'
NO_IMAGES = (
    'error: tests: no images in this folder (.bmp .jpeg .jpg .pgm .png .ppm .tif .tiff .webp)'
)


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


@pytest.mark.parametrize(
    ('tool', 'usage'),
    [
        (
            'dist_train.sh',
            'usage: bash tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]',
        ),
        (
            'dist_test.sh',
            'usage: bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [arguments of tools/test.py]',
        ),
        (
            'slurm_train.sh',
            'usage: bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR '
            '[arguments of tools/train.py]',
        ),
    ],
)
def test_launchers_say_their_usage(run_tool, tool, usage):
    result = run_tool(tool, check=False)
    assert (result.returncode, result.stdout) == (2, usage + '\n')
