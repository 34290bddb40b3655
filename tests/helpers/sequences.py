"""The five tasks of the Long Range Arena in their official layouts, a few samples each."""

import pickle

import numpy as np
from PIL import Image

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


def write_cifar(folder, suffix=''):
    """Write two of the five training batches, of 10 pictures each, and the test batch."""
    folder.mkdir(parents=True)
    pixels, labels = cifar_pixels(10), list(range(10))
    for name in ('data_batch_1', 'data_batch_3', 'test_batch'):
        if suffix:
            content = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], 1).tobytes()
        else:
            content = pickle.dumps({b'data': pixels, b'labels': labels}, protocol=2)
        (folder / f'{name}{suffix}').write_bytes(content)
    return folder


WRITERS = {
    'ListOps': write_listops,
    'ByteText': write_text,
    'Retrieval': write_retrieval,
    'Pathfinder': write_pathfinder,
    'GreyCIFAR': write_cifar,
}
