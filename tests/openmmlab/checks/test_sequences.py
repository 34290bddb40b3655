"""check_data on the data sets of the Long Range Arena."""

import pytest
from mmengine.config import Config

from mmpola.openmmlab.checks import check_data
from tests.helpers.refusals import errors, refusal
from tests.helpers.sequences import WRITERS, expect_cifar


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


def config(name, root):
    loaders = {
        f'{place}_dataloader': {
            'dataset': {'type': f'mmpola.{name}', 'root': str(root), 'split': split}
        }
        for place, split in (('train', 'train'), ('val', 'dev'), ('test', 'test'))
    }
    return Config({**loaders, 'model': {'num_classes': 3}, 'default_scope': 'mmpola'})


@pytest.mark.parametrize(('name', 'sizes'), [('Retrieval', [2, 2, 2]), ('GreyCIFAR', [45, 5, 10])])
def test_every_split_is_counted(name, sizes, tmp_path, monkeypatch):
    root = WRITERS[name](tmp_path / 'data')
    if name == 'GreyCIFAR':
        expect_cifar(monkeypatch, root)
    cfg = config(name, root)
    cfg.model.num_classes = 10 if name == 'GreyCIFAR' else 2
    checked = check_data(cfg, whole=True).sets
    assert [(tuple(data.splits), data.kind, data.images) for data in checked] == [
        (('train',), name, sizes[0]),
        (('val',), name, sizes[1]),
        (('test',), name, sizes[2]),
    ]
    assert checked[0].paths == [root]
    assert [data.labels.total for data in checked] == sizes


def test_problems_of_the_files_and_of_the_classes_are_listed(tmp_path):
    root = WRITERS['ListOps'](tmp_path / 'data')
    cfg = config('ListOps', root)
    ((name, text),) = errors(cfg)
    assert name == 'class-count'
    assert text.startswith('model.num_classes: expected 10')
    path = root / 'basic_train.tsv'
    path.write_text('Source\tTarget\n1\nx\t1\n')
    ((name, text),) = errors(cfg)
    assert name == 'unreadable'
    assert text.startswith(f'{path}, line 2: expected 2 columns')


def test_a_missing_folder_is_named(tmp_path):
    message = refusal(check_data, config('ListOps', tmp_path / 'none'), ('train',))
    assert f'train_dataloader: {tmp_path}/none: not found' in message
