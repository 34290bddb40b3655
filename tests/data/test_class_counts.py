"""The number of classes of a model, compared with that of its data."""

from mmpola.data.class_folders import IMAGENET, class_source


def test_a_thousand_classes_are_those_of_imagenet_unless_the_data_has_as_many(tmp_path):
    folder, names = tmp_path / 'train', tmp_path / 'names.txt'
    for number in range(1000):
        (folder / f'class {number}').mkdir(parents=True)
    names.touch()
    for dataset in ({'classes': str(folder)}, {'classes': str(names)}, {'root': str(folder)}):
        assert class_source(dataset, 1000) == next(iter(dataset.values()))
    (folder / 'class 0').rmdir()
    for dataset in ({'classes': 'none'}, {'classes': str(folder)}, {'root': str(folder)}, {}):
        assert class_source(dataset, 1000) == IMAGENET
    assert class_source({'root': str(folder), 'classes': None}, 999) == str(folder)
