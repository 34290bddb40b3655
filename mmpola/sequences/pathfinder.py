"""Generate Pathfinder: `python -m mmpola.sequences.pathfinder OUT` writes OUT/LEVEL/{imgs,metadata}.

LEVEL is `curv_contour_length_L` with the number L of paddles of a path, as in the official release.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from mmpola.engine.progress import progress
from mmpola.sequences import snakes
from mmpola.sequences.generating import expect, generator_parser, in_parallel, new_folder, run_generator

PER_FOLDER = 1_000
"""Images in a folder of `imgs`."""

DISTRACTOR_PADDLES = 20
"""Paddles of all distractors of an image together."""

CONTRASTS = 1
"""The last column of the metadata: the number of contrasts."""

SHORTEST, LONGEST = 3, 18
"""Contours: a third of the shortest is one distractor's length; longer ones hardly find room in 32 x 32 pixels."""


def write_pathfinder(out: Path, images: int, contour_length: int = 14, seed: int = 0, workers: int = 1) -> None:
    """Write a data set.

    Args:
        out: a new folder.
        images: their number.
        contour_length: paddles of a path; 14, 9 and 6 are the official levels.
        seed: of the images; an image depends on it and on its number alone.
        workers: processes.

    Raises:
        UsageError: an argument is out of range, or `out` holds files.
    """
    expect('images', images, 1)
    expect('contour_length', contour_length, SHORTEST, LONGEST)
    expect('workers', workers, 1)
    expect('seed', seed, 0)
    with new_folder(out) as folder:
        level = folder / f'curv_contour_length_{contour_length}'
        draw = partial(_write_image, level, contour_length, seed)
        (level / 'metadata').mkdir(parents=True)
        for batch in range(-(-images // PER_FOLDER)):
            (level / 'imgs' / str(batch)).mkdir(parents=True)
        with in_parallel(draw, range(images), workers) as rows, progress('drawing images', images) as advance:
            for index, row in enumerate(rows):
                with (level / 'metadata' / f'{index // PER_FOLDER}.npy').open('a') as table:  # plain text, as released
                    print(row, file=table)
                advance(1)


def _write_image(level: Path, contour_length: int, seed: int, number: int) -> str:
    """Write an image and return its row of the metadata."""
    distractor_length = contour_length // 3
    random = np.random.Generator(np.random.PCG64([seed, number]))
    scene, pixels = snakes.draw_scene(
        random, contour_length, distractor_length, DISTRACTOR_PADDLES // distractor_length
    )
    batch, index = divmod(number, PER_FOLDER)
    Image.fromarray(pixels).save(level / 'imgs' / str(batch) / f'sample_{index}.png')
    cells = (f'imgs/{batch}', f'sample_{index}.png', index, scene.label, snakes.CONTINUITY, contour_length)
    paddle = (snakes.LENGTH, snakes.THICKNESS, snakes.MARGIN)
    return ' '.join(map(str, (*cells, distractor_length, *paddle, CONTRASTS)))


def main() -> None:
    parser = generator_parser('mmpola.sequences.pathfinder', 'Generate Pathfinder in its official layout')
    parser.add_argument('--images', type=int, default=200_000, metavar='N', help='number of images')
    parser.add_argument('--contour-length', type=int, default=14, metavar='L', help='paddles of a path')
    args = parser.parse_args()
    write_pathfinder(args.out, args.images, args.contour_length, args.seed, args.workers)


if __name__ == '__main__':
    run_generator(main)
