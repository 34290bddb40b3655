"""A teacher's boxes become a file in COCO's format."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from PIL import Image

from tools.dev import label_photographs
from tools.dev.coco_file import CLASSES
from tools.dev.label_photographs import STRIDES, main

SIDE = 64  # pixels


@pytest.fixture
def teacher(tmp_path):
    """Write a teacher that always finds two dogs and a doubtful cat, of one cell of stride 32 each.

    Their sides are one stride from the centre.
    """
    outputs = {}
    for stride in STRIDES:
        cells = (SIDE // stride) ** 2
        outputs[f'scores_{stride}'] = np.zeros((1, cells, len(CLASSES)), np.float32)
    for stride in STRIDES:
        cells = (SIDE // stride) ** 2
        logits = np.zeros((1, cells, 4, 8), np.float32)
        logits[..., 1] = 99
        outputs[f'sides_{stride}'] = logits.reshape(1, cells, 32)
    scores = outputs['scores_32'][0]  # of the cells in two rows of two
    scores[0, CLASSES.index('dog')] = 0.9
    scores[1, CLASSES.index('dog')] = 0.5
    scores[3, CLASSES.index('cat')] = 0.3
    named = [numpy_helper.from_array(values, f'{name}_') for name, values in outputs.items()]
    nodes = [helper.make_node('Identity', [f'{name}_'], [name]) for name in outputs]
    shape = [1, 3, SIDE, SIDE]
    graph = helper.make_graph(
        nodes,
        'teacher',
        [helper.make_tensor_value_info('image', onnx.TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(values.shape))
            for name, values in outputs.items()
        ],
        named,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 13)], ir_version=8)
    onnx.save(model, tmp_path / 'teacher.onnx')
    return tmp_path / 'teacher.onnx'


def test_boxes_are_in_pixels_of_the_photograph(teacher, tmp_path, capsys):
    folder = tmp_path / 'photographs'
    folder.mkdir()
    Image.new('RGB', (128, 64)).save(folder / 'wide.jpg')
    out = tmp_path / 'labels.json'
    main([str(teacher), str(folder), '--out', str(out)])
    assert capsys.readouterr().out == '1 photographs, 2 boxes, 1 ignored\n'
    content = json.loads(out.read_text())
    (image,) = content['images']
    assert image == {'id': 1, 'file_name': 'wide.jpg', 'width': 128, 'height': 64}
    names = {category['id']: category['name'] for category in content['categories']}
    found = [(names[x['category_id']], x['iscrowd'], x['bbox']) for x in content['annotations']]
    assert found == [
        ('dog', 0, [0, 0, 96, 48]),
        ('dog', 0, [32, 0, 96, 48]),
        ('cat', 1, [32, 16, 96, 48]),
    ]
    assert [x['score'] for x in content['annotations']] == [0.9, 0.5, 0.3]


def test_a_command_that_was_killed_continues(teacher, tmp_path, monkeypatch):
    folder = tmp_path / 'photographs'
    folder.mkdir()
    for name in 'abc':
        Image.new('RGB', (64, 64)).save(folder / f'{name}.jpg')
    out = tmp_path / 'labels.json'
    arguments = [str(teacher), str(folder), '--out', str(out)]
    main(arguments)
    whole = out.read_text()
    out.unlink()
    labelled = []
    label = label_photographs.label

    def stop(teacher, file, *others):
        if len(labelled) == 2:
            raise KeyboardInterrupt
        labelled.append(file.name)
        return label(teacher, file, *others)

    with monkeypatch.context() as patch:
        patch.setattr(label_photographs, 'label', stop)
        with pytest.raises(KeyboardInterrupt):
            main(arguments)
    with (tmp_path / 'labels.json.part').open('a') as file:
        file.write('{"file_name": "c')  # killed within a line
    main(arguments)
    assert out.read_text() == whole
