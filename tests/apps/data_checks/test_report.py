"""The table of counts, as tools/check_data.py prints it."""

import json

from tests.helpers.processes import run_script
from tests.helpers.refusals import assert_lines


def test_the_table(tiny_config, shapes, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '200')
    assert run_script('check_data', tiny_config) == 0
    output = capsys.readouterr().out
    assert 'images of train: 12 of 12' in output
    assert 'images of val: 4 of 4' in output
    assert 'masks in run lengths of val: 2 of 2' in output
    assert (
        f'train: {shapes}/coco/annotations/instances_train2017.json, {shapes}/coco/train2017'
        in output
    )
    rows = [
        [cell.strip() for cell in line.split('│')[1:-1]]
        for line in output.splitlines()
        if line.startswith('│')
    ]
    truth = json.loads((shapes / 'coco' / 'annotations' / 'instances_val2017.json').read_text())
    images = [
        annotation['image_id'] for annotation in truth['annotations'] if not annotation['iscrowd']
    ]
    crowds = len(truth['annotations']) - len(images)
    assert crowds
    assert rows[1] == ['val, test', 'COCO', '4', str(len(images)), str(4 - len(set(images))), '6']
    file = f'{shapes}/coco/annotations/instances_val2017.json'
    notes = [line for line in output.splitlines() if line.startswith(f'note: {file}: ')]
    assert any(f'crowds, which are ignored ({crowds}):' in note for note in notes)


def test_strict_refuses_what_a_loader_drops(tiny_config, coco, annotations, capsys):
    flat = annotations['annotations'][0]
    flat['area'] = 0
    annotations.save()
    options = ['--cfg-options', f'train_dataloader.dataset.data_root={coco}/']
    assert run_script('check_data', tiny_config, *options) == 0
    lines = capsys.readouterr().out.splitlines()
    (warning,) = [line for line in lines if line.startswith('warning: ')]
    assert_lines([warning], (f'warning: {annotations.path}', 'without area', f'(1): {flat["id"]}'))
    assert run_script('check_data', tiny_config, '--strict', *options) == 2
    headline, line = capsys.readouterr().err.splitlines()[-2:]
    assert headline.startswith('error: ')
    assert line.strip() == warning.removeprefix('warning: ')


def test_names_with_terminal_escapes_are_printed_as_text(
    tiny_config, coco, annotations, tmp_path, capsys
):
    """In the path of the data, in the names of its images, and in those of its categories."""
    escape = '\x1b[2J'
    annotations['categories'].append({'id': 99, 'name': f'other{escape}'})
    annotations['annotations'][0]['category_id'] = 99
    annotations.save()
    data = coco.rename(tmp_path / f'data{escape}')
    root = f'train_dataloader.dataset.data_root={data}/'
    assert run_script('check_data', tiny_config, '--cfg-options', root) == 0
    printed = capsys.readouterr().out
    assert 'data\\x1b[2J' in printed
    assert 'other\\x1b[2J (1)' in printed
    assert escape not in printed
    image = next((data / 'train2017').iterdir())
    image.unlink()
    assert run_script('check_data', tiny_config, '--cfg-options', root) == 2
    printed = capsys.readouterr().err
    assert 'data\\x1b[2J' in printed
    assert escape not in printed
