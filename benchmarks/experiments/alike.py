"""Which photographs are the same one, also at another size, mirrored, or taken a moment later?

    python -m benchmarks.experiments.alike FOLDER    # print the fingerprints of its photographs

The photographs of raccoons are not in this repository; splits/raccoons_fingerprints.txt has theirs.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

SIDE = 8
ALIKE = 8
"""Photographs are alike if fewer of their 64 bits differ."""


class Fingerprint(NamedTuple):
    """What is compared of a photograph.

    Attributes:
        content: of its file, the first 16 digits of SHA-256.
        look: 16 hexadecimal digits, a bit for each pixel of 8 x 8: whether its right neighbour is
            brighter (the difference hash of perceptual hashing).
    """

    content: str
    look: str

    @property
    def bits(self) -> np.ndarray:
        """The look as truth values [8, 8]."""
        return np.unpackbits(np.frombuffer(bytes.fromhex(self.look), np.uint8)).reshape(SIDE, SIDE)


def fingerprint(path: Path) -> Fingerprint:
    """Return the fingerprint of a photograph."""
    with Image.open(path) as image:
        small = image.convert('L').resize((SIDE + 1, SIDE), Image.Resampling.LANCZOS)
    pixels = np.asarray(small, int)
    is_brighter = pixels[:, 1:] > pixels[:, :-1]
    content = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return Fingerprint(content, np.packbits(is_brighter).tobytes().hex())


def alike(first: dict[str, Fingerprint], second: dict[str, Fingerprint]) -> list[tuple[str, str]]:
    """Return the pairs of names of photographs that are alike, one of each split.

    Args:
        first: the name of a photograph -> its fingerprint.
        second: of another split; or `first` itself, for the pairs inside it.
    """
    bits = np.stack([print_.bits for print_ in second.values()])
    mirrored = 1 - bits[:, :, ::-1]
    pairs = set()
    for name, one in first.items():
        distance = np.abs(bits ^ one.bits).sum((1, 2))
        distance_mirrored = np.abs(mirrored ^ one.bits).sum((1, 2))
        is_alike = np.minimum(distance, distance_mirrored) < ALIKE
        for (other, two), looks_alike in zip(second.items(), is_alike, strict=True):
            is_same = first is second and name >= other
            if not is_same and (looks_alike or one.content == two.content):
                pairs.add((name, other))
    return sorted(pairs)


def read_fingerprints(path: Path) -> dict[str, Fingerprint]:
    """Return the fingerprints of a file that this script has printed."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return {name: Fingerprint(content, look) for name, content, look in lines}


def fingerprints(paths: Iterable[Path]) -> dict[str, Fingerprint]:
    """Return the fingerprints of photographs by their names without suffix."""
    return {path.stem: fingerprint(path) for path in sorted(paths)}


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description='Print the fingerprints of photographs.')
    parser.add_argument('folder', type=Path)
    for name, found in fingerprints(parser.parse_args().folder.iterdir()).items():
        print(name, *found)
