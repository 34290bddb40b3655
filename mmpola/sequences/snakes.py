"""Draw the images of Pathfinder: two long dashed paths, two discs on their ends, and short dashed distractors.

A path is a chain of paddles, short strokes with gaps between them. Each paddle turns about a pivot in the middle of the
gap before it; its head is one of the pixels at a fixed distance from the pivot. A mask keeps paddles apart.

Positions are (row, column) in pixels. Arrays have a border of PAD pixels, so that a stamp never leaves them.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Floats = NDArray[np.float64]
Values = TypeVar('Values', NDArray[np.float64], NDArray[np.uint8])
Position = tuple[float, float]

WINDOW = 32
PADDING = 1
"""Pixels at the window's edges that no paddle may touch."""
SCALE = 2
"""Strokes are drawn at twice the resolution."""
LENGTH, THICKNESS, MARGIN = 2, 0.5, 1
"""Of a paddle, in pixels; the gap between two is twice the margin."""
MARKER_RADIUS = 1.5
SEED_DISTANCE = 7
CENTRE = range(14, 18)
"""Rows and columns in which the first path begins."""
CONTINUITY = 1.0
"""The greater, the straighter the paths."""
BRIGHT, DIM = 255, 191
"""Grey values of the distractors, and of the two paths and the discs, as drawn; reducing a disc makes it brighter."""
PADDLE_RETRIES, DISTRACTOR_RETRIES = 2, 4
DISTRACTOR_SHARE = 0.23
"""Of the distractors that are drawn at all. In the published generator most attempts fail: of 5, it draws 0 in 26 % of
its images, 1 in 43, 2 in 22 and 3 in 9 % (measured on 399 images), where the masks here would leave room for all."""
OVERLAP = 1.8
"""Sum of two masks from which paddles are too close."""

PAD = 8
REACH = 8
"""Half of a stamp's side, rounded down: a paddle, twice its margin, and the filter that reduces the drawing."""


class Paddle(NamedTuple):
    """A stroke from its tail to its head, with the pivot about which it turned."""

    tail: Position
    head: Position
    pivot: Position
    angle: float


class Scene(NamedTuple):
    """The geometry of an image; the label is 1 if both markers are on the same path."""

    paths: tuple[list[Paddle], list[Paddle]]
    distractors: list[list[Paddle]]
    markers: tuple[Position, Position]
    label: int


class Stamp(NamedTuple):
    """What a paddle adds around its tail's pixel: strokes 0 … 255, its mask, and the mask widened by the margin."""

    ink: NDArray[np.uint8]
    mask: Floats
    wide: Floats


class _FailedError(Exception):
    """There is no room for a paddle; the path or the image is drawn again."""


def _ring() -> tuple[NDArray[np.int64], Floats]:
    """Return the offsets [16, 2] of the pixels at the distance of a head from its pivot, and their angles."""
    radius = LENGTH + MARGIN
    rows, columns = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    on_circle = np.rint(np.hypot(rows, columns)) == radius
    return np.stack([rows[on_circle], columns[on_circle]], 1), np.arctan2(rows[on_circle], columns[on_circle])


RING, RING_ANGLES = _ring()


def draw_scene(
    random: np.random.Generator, contour_length: int, distractor_length: int, distractors: int
) -> tuple[Scene, NDArray[np.uint8]]:
    """Draw an image.

    Args:
        random: its random numbers.
        contour_length: paddles of each of the two paths.
        distractor_length: paddles of each distractor.
        distractors: their greatest number, of which DISTRACTOR_SHARE are drawn on average.

    Returns:
        The geometry, and the grey values [32, 32].
    """
    label = int(random.integers(2))
    while True:
        canvas = _Canvas()
        try:
            paths = _two_paths(random, canvas, contour_length)
        except _FailedError:
            continue
        break
    others = []
    for _ in range(random.binomial(distractors, DISTRACTOR_SHARE)):
        for _ in range(1 + DISTRACTOR_RETRIES):
            trial = canvas.copy()
            try:
                others.append(_distractor(random, trial, distractor_length))
            except _FailedError:
                continue
            canvas = trial
            break
    first = int(random.integers(2))
    last = first if label else 1 - first
    scene = Scene(paths, others, (paths[first][0].tail, paths[last][-1].head), label)
    return scene, render(scene)


class _Canvas:
    """The masks of the paddles so far; the edges of the window are masked from the start.

    Attributes:
        mask: 0 … 1 [48, 48].
        wide: the same, widened by the margin.
    """

    def __init__(self) -> None:
        self.mask = np.ones((WINDOW + 2 * PAD,) * 2)
        inner = slice(PAD + PADDING, PAD + WINDOW - PADDING)
        self.mask[inner, inner] = 0
        self.wide = _widened(self.mask, MARGIN)

    def copy(self) -> _Canvas:
        other = object.__new__(_Canvas)
        other.mask, other.wide = self.mask.copy(), self.wide.copy()
        return other

    def add(self, paddle: Paddle) -> bool:
        """Add a paddle; False if it is too close to others."""
        stamp, place = _stamp_of(paddle)
        if not _inside(paddle.tail) or not _inside(paddle.head) or (self.mask[place] + stamp.mask).max() >= OVERLAP:
            return False
        np.maximum(self.mask[place], stamp.mask, out=self.mask[place])
        np.maximum(self.wide[place], stamp.wide, out=self.wide[place])
        return True

    def free_tails(self, angle: float) -> NDArray[np.int64]:
        """Return the pixels [N, 2] from which a paddle at this angle crosses no mask."""
        taken = np.zeros((WINDOW, WINDOW), bool)
        for step in range(LENGTH + 1):
            row, column = (PAD + round(part) for part in _along(angle, step))
            taken |= self.mask[row : row + WINDOW, column : column + WINDOW] >= 0.5
        return np.argwhere(~taken)


def _two_paths(random: np.random.Generator, canvas: _Canvas, length: int) -> tuple[list[Paddle], list[Paddle]]:
    """Draw two paths, a paddle of each in turn."""
    angle = _whole_degree(random)
    tails = [tail for tail in canvas.free_tails(angle).tolist() if tail[0] in CENTRE and tail[1] in CENTRE]
    first = _begin(random, canvas, angle, tails)
    row, column = _along(random.uniform(0, 2 * np.pi), SEED_DISTANCE)
    tail = [round(first.tail[0] + row), round(first.tail[1] + column)]
    second = _begin(random, canvas, _whole_degree(random), [tail])
    paths = ([first], [second])
    for _ in range(length - 1):
        for path in paths:
            path.append(_grow(random, canvas, path[-1]))
    return paths


def _distractor(random: np.random.Generator, canvas: _Canvas, length: int) -> list[Paddle]:
    angle = _whole_degree(random)
    path = [_begin(random, canvas, angle, canvas.free_tails(angle).tolist())]
    for _ in range(length - 1):
        path.append(_grow(random, canvas, path[-1]))
    return path


def _whole_degree(random: np.random.Generator) -> float:
    return float(np.deg2rad(random.integers(360)))


def _along(angle: float, distance: float) -> Position:
    """Return the offset (rows, columns) of a distance at an angle."""
    return round(distance * np.sin(angle), 9), round(distance * np.cos(angle), 9)


def _inside(position: Position) -> bool:
    return all(0 <= part <= WINDOW - 1 for part in position)


def _begin(random: np.random.Generator, canvas: _Canvas, angle: float, tails: list[list[int]]) -> Paddle:
    """Add the first paddle of a path, at one of the tails."""
    if not tails:
        raise _FailedError
    row, column = tails[random.integers(len(tails))]
    ahead, behind = _along(angle, LENGTH), _along(angle, -MARGIN)
    head, pivot = (row + ahead[0], column + ahead[1]), (row + behind[0], column + behind[1])
    paddle = Paddle((row, column), head, pivot, angle)
    if not canvas.add(paddle):
        raise _FailedError
    return paddle


def _grow(random: np.random.Generator, canvas: _Canvas, last: Paddle) -> Paddle:
    """Add the next paddle of a path."""
    ahead = _along(last.angle, LENGTH + 2 * MARGIN)
    pivot = (int(np.ceil(last.pivot[0] + ahead[0])), int(np.ceil(last.pivot[1] + ahead[1])))
    heads = RING + pivot
    if not _inside(pivot):
        raise _FailedError
    turn = np.abs((RING_ANGLES - last.angle + np.pi) % (2 * np.pi) - np.pi)
    free = 1 - canvas.wide[heads[:, 0] + PAD, heads[:, 1] + PAD]
    weights = free * np.cos(np.minimum(CONTINUITY * turn, np.pi / 2)) ** 2
    total = weights.sum()
    if total < 1e-9:
        raise _FailedError
    for _ in range(1 + PADDLE_RETRIES):
        choice = random.choice(len(heads), p=weights / total)
        angle = float(RING_ANGLES[choice])
        row, column = _along(angle, MARGIN)
        head = (int(heads[choice, 0]), int(heads[choice, 1]))
        paddle = Paddle((pivot[0] + row, pivot[1] + column), head, pivot, angle)
        if canvas.add(paddle):
            return paddle
    raise _FailedError


def render(scene: Scene) -> NDArray[np.uint8]:
    """Return the grey values [32, 32] of a scene, stretched to 0 … 255."""
    layer = np.zeros((WINDOW + 2 * PAD,) * 2, np.uint8)
    for ink, chains in ((DIM, scene.paths), (BRIGHT, scene.distractors)):
        for paddle in (paddle for chain in chains for paddle in chain):
            stamp, place = _stamp_of(paddle, ink)
            np.maximum(layer[place], stamp.ink, out=layer[place])
    for marker in scene.markers:
        place, offset = _placed(marker)
        np.maximum(layer[place], _disc(offset), out=layer[place])
    image = layer[PAD : PAD + WINDOW, PAD : PAD + WINDOW].astype(np.float64)
    return np.rint((image - image.min()) * 255 / (image.max() - image.min())).astype(np.uint8)


def _placed(position: Position) -> tuple[tuple[slice, slice], tuple[int, int]]:
    """Return where the stamp around a position is, and the position's offset from its centre in half pixels."""
    row, column = (int(np.floor(part)) for part in position)
    place = (slice(row + PAD - REACH, row + PAD + REACH + 1), slice(column + PAD - REACH, column + PAD + REACH + 1))
    return place, (round(SCALE * (position[0] - row)), round(SCALE * (position[1] - column)))


def _stamp_of(paddle: Paddle, ink: int = BRIGHT) -> tuple[Stamp, tuple[slice, slice]]:
    """Return the stamp of a paddle and where it is."""
    place, tail = _placed(paddle.tail)
    head = tuple(
        round(SCALE * (end - start)) + offset for end, start, offset in zip(paddle.head, paddle.tail, tail, strict=True)
    )
    return _stamp(tail, (head[0], head[1]), ink), place


@cache
def _stamp(tail: tuple[int, int], head: tuple[int, int], ink: int) -> Stamp:
    """Draw a paddle; its ends are offsets from the centre in half pixels.

    The mask is a stroke of the true thickness, widened by the margin. The visible stroke covers whole pixels instead.
    """
    ends = sorted((tail, head))  # Pillow draws the two directions differently
    points = [(SCALE * REACH + column, SCALE * REACH + row) for row, column in ends]
    thin = round(SCALE * THICKNESS)
    images = []
    for fill, width in ((ink, thin + 1), (255, thin)):
        image, drawing = _blank()
        drawing.line(points, fill=fill, width=width)
        images.append(image)
    mask = _reduced(Image.fromarray(_widened(np.asarray(images[1]), SCALE * MARGIN))).astype(np.float64) / 255
    return Stamp(_reduced(images[0]), mask, _widened(mask, MARGIN))


@cache
def _disc(offset: tuple[int, int]) -> NDArray[np.uint8]:
    """Draw a marker around an offset from the centre in half pixels."""
    image, drawing = _blank()
    row, column = (SCALE * REACH + part for part in offset)
    radius = MARKER_RADIUS * SCALE
    drawing.ellipse((column - radius, row - radius, column + radius, row + radius), fill=DIM)
    return _reduced(image)


def _blank() -> tuple[Image.Image, ImageDraw.ImageDraw]:
    side = SCALE * (2 * REACH + 1)
    image = Image.new('L', (side, side))
    return image, ImageDraw.Draw(image)


def _reduced(image: Image.Image) -> NDArray[np.uint8]:
    side = 2 * REACH + 1
    return np.asarray(image.resize((side, side), Image.Resampling.LANCZOS))


def _widened(mask: Values, margin: int) -> Values:
    """Return the maximum of a mask [H, W] within a margin of each pixel."""
    height, width = mask.shape
    padded = np.pad(mask, margin)
    steps = range(-margin, margin + 1)
    disc = [(row, column) for row in steps for column in steps if np.hypot(row, column) <= margin]
    moved = [padded[margin + row :, margin + column :][:height, :width] for row, column in disc]
    return np.max(np.stack(moved), axis=0)
