"""The five tasks of the Long Range Arena in their official layouts, a few samples each."""

import hashlib
import pickle

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10

LISTOPS = 'Source\tTarget\r\n( ( ( [MAX 2 ) ( ( ( [SM 9 ) 4 ) ] ) ) ] )\t3\r\n7\t7\r\n'


def write_listops(folder):
    folder.mkdir(parents=True)
    for split in ('train', 'val', 'test'):
        (folder / f'basic_{split}.tsv').write_bytes(LISTOPS.encode())
    return folder


def write_text(folder):
    for split in ('train', 'test'):
        for name, rating in (('neg', 2), ('pos', 9)):
            (folder / split / name).mkdir(parents=True)
            for number in (10, 2):
                (folder / split / name / f'{number}_{rating}.txt').write_bytes(
                    f'{split} {number} é'.encode()
                )
    return folder


def write_retrieval(folder):
    folder.mkdir(parents=True)
    rows = ["1.0\tA\tB\tb'it\\'s\\n\\xc3'\tb\"two\"", "0.0\tA\tC\tb'it\\'s\\n\\xc3'\tplain text é"]
    for split in ('train', 'eval', 'test'):
        (folder / f'new_aan_pairs.{split}.tsv').write_text('\n'.join(rows), encoding='utf-8')
    return folder


def write_pathfinder(folder, images=20, table='text'):
    """Write images of one grey value, the number of the image; `table` is 'text' or 'array'."""
    level = folder / 'curv_contour_length_14'
    for part in ('imgs/0', 'metadata'):
        (level / part).mkdir(parents=True)
    rows = [('imgs/0', f'sample_{number}.png', number, number % 2, 1.0) for number in range(images)]
    for _, name, number, *_ in rows:
        Image.fromarray(np.full((32, 32), number, np.uint8)).save(level / 'imgs/0' / name)
    path = level / 'metadata/0.npy'
    if table == 'text':
        path.write_text('\n'.join(' '.join(map(str, row)) for row in rows))
    else:
        np.save(path, np.array(rows))
    return folder


def cifar_pixels(pictures):
    return np.arange(pictures * 3072, dtype=np.uint64).astype(np.uint8).reshape(pictures, 3072)


def write_cifar(folder):
    """Write the training batches and the test batch, of 10 pictures each, and their classes."""
    folder.mkdir(parents=True)
    batch = pickle.dumps({'data': cifar_pixels(10), 'labels': list(range(10))}, protocol=2)
    for name in ('data_batch_1', 'data_batch_2', 'data_batch_3', 'data_batch_4', 'data_batch_5'):
        (folder / name).write_bytes(batch)
    (folder / 'test_batch').write_bytes(batch)
    (folder / 'batches.meta').write_bytes(pickle.dumps({'label_names': list('abcdefghij')}))
    return folder


def expect_cifar(monkeypatch, folder):
    """Make torchvision take the files in a folder for the whole of CIFAR-10."""
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    train = [[name, sums[name]] for name in sorted(sums) if name.startswith('data_batch')]
    monkeypatch.setattr(CIFAR10, 'base_folder', folder.name)
    monkeypatch.setattr(CIFAR10, 'train_list', train)
    monkeypatch.setattr(CIFAR10, 'test_list', [['test_batch', sums['test_batch']]])
    monkeypatch.setattr(CIFAR10, 'meta', {**CIFAR10.meta, 'md5': sums['batches.meta']})


WRITERS = {
    'ListOps': write_listops,
    'ByteText': write_text,
    'Retrieval': write_retrieval,
    'Pathfinder': write_pathfinder,
    'GreyCIFAR': write_cifar,
}
