"""The table of counts, as tools/check_data.py prints it."""

import json

from tests.helpers.processes import run_script


def test_the_table(tiny_config, shapes, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '200')
    assert run_script('check_data', tiny_config) == 0
    output = capsys.readouterr().out
    assert (
        'reading images and masks: 18 of 18' in output
    )  # 16 images, and two crowds in run lengths
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
    assert f'note: {file}: annotations of crowds, which are ignored ({crowds}):' in output


def test_strict_refuses_what_a_loader_drops(tiny_config, coco, annotations, capsys):
    flat = annotations['annotations'][0]
    flat['area'] = 0
    annotations.save()
    options = ['--cfg-options', f'train_dataloader.dataset.data_root={coco}/']
    line = f'{annotations.path}: dropped boxes narrower than a pixel or without area, annotations (1): {flat["id"]}'
    assert run_script('check_data', tiny_config, *options) == 0
    assert f'warning: {line}\n' in capsys.readouterr().out
    assert run_script('check_data', tiny_config, '--strict', *options) == 2
    assert capsys.readouterr().err.endswith(f'error: the data is not valid\n  {line}\n')


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
