"""Label photographs with the boxes of PicoDet-S, the teacher of the small detector.

    python tools/dev/label_photographs.py checkpoints/picodet_s_416_coco.onnx \
        data/photographs/coco --out data/photographs/coco.json

The teacher is coco/picodet_s_416_coco.onnx of https://github.com/hpc203/picodet-onnxruntime, commit
dfe4d6c: 4.0 MB, COCO's 80 classes, published AP 30.6, from PaddleDetection, under the Apache-2.0
licence. It reads RGB photographs that are stretched to 416 x 416 pixels.

OUT is a file in COCO's format for all JPEGs in FOLDER. Boxes with a score of at least --keep are
objects. Boxes with a lower score of at least --ignore have `iscrowd` 1: a detector is trained
neither to find them nor to find nothing there. Photographs without boxes stay, and teach the
background. Each annotation also has its `score`.

OUT.part has a line for each photograph that is finished: the same command continues after it.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from PIL import Image
from torchvision.ops import batched_nms
from tqdm import tqdm

from mmpola.messages import run_main

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the module beside this one

from tools.dev.coco_file import write_coco

STRIDES = (8, 16, 32, 64)  # pixels, in the order of the outputs
MEAN = np.array([123.675, 116.28, 103.53], np.float32)  # ImageNet's, RGB from 0 to 255
DEVIATION = np.array([58.395, 57.12, 57.375], np.float32)
SAME_OBJECT = 0.6  # intersection over union of two boxes of a class that are one object


class PicoDet:
    """The teacher: boxes (x1, y1, x2, y2) in pixels, scores and class indices of a photograph.

    Its outputs are, for each stride, scores [1, N, 80] of N cells, and after the scores of all
    strides, logits [1, N, 4 * 8]: a distribution over 0 to 7 strides from the cell's
    centre to each side.
    """

    def __init__(self, file: Path) -> None:
        """Read the ONNX file, whose input is [1, 3, S, S]; one thread."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of every weight that is also an input
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(file), options)
        inputs = {entry.name: entry for entry in self.session.get_inputs()}
        self.input_name = next(iter(inputs))
        self.side = inputs[self.input_name].shape[-1]

    def __call__(self, photograph: Image.Image, smallest: float) -> tuple[torch.Tensor, ...]:
        """Return boxes [K, 4], scores [K] of at least `smallest`, best first, and classes [K]."""
        stretched = photograph.resize((self.side, self.side), Image.Resampling.BILINEAR)
        pixels = (np.asarray(stretched, np.float32) - MEAN) / DEVIATION
        outputs = self.session.run(None, {self.input_name: pixels.transpose(2, 0, 1)[None]})
        all_boxes = []
        all_scores = []
        for index, stride in enumerate(STRIDES):
            all_scores.append(torch.from_numpy(outputs[index][0]))
            logits = torch.from_numpy(outputs[index + len(STRIDES)][0])
            all_boxes.append(self.boxes(logits, stride))
        scores, classes = torch.cat(all_scores).max(dim=1)
        found = scores >= smallest
        to_photograph = torch.tensor(photograph.size * 2) / self.side
        boxes = torch.cat(all_boxes)[found].clamp(0, self.side) * to_photograph
        scores = scores[found]
        classes = classes[found]
        kept = batched_nms(boxes, scores, classes, SAME_OBJECT)
        return boxes[kept], scores[kept], classes[kept]

    def boxes(self, logits: torch.Tensor, stride: int) -> torch.Tensor:
        """Return the boxes [N, 4] of a stride in pixels of the stretched photograph."""
        cells = -(-self.side // stride)  # in a row
        distribution = logits.unflatten(1, (4, -1)).softmax(dim=-1)
        to_sides = distribution @ torch.arange(distribution.shape[-1], dtype=torch.float32)
        rows, columns = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing='ij')
        centres = torch.stack((columns, rows), dim=-1).reshape(-1, 2) + 0.5
        corners = torch.cat((centres - to_sides[:, :2], centres + to_sides[:, 2:]), dim=1)
        return corners * stride


def label(teacher: PicoDet, file: Path, keep: float, ignore: float) -> dict[str, Any]:
    """Return the entry of a photograph, with its annotations, as COCO's format has them."""
    photograph = Image.open(file).convert('RGB')
    annotations = []
    for box, score, number in zip(*teacher(photograph, ignore), strict=True):
        left, top, right, bottom = (round(float(side), 1) for side in box)
        width = round(right - left, 1)
        height = round(bottom - top, 1)
        annotations.append(
            dict(
                bbox=[left, top, width, height],
                area=round(width * height, 1),
                category_id=int(number) + 1,
                iscrowd=int(score < keep),
                score=round(float(score), 3),
            )
        )
    size = dict(width=photograph.width, height=photograph.height)
    return dict(file_name=file.name, **size, annotations=annotations)


def main(arguments: list[str] | None = None) -> None:
    """Label the photographs that are not labelled yet, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('teacher', type=Path, help='the ONNX file')
    parser.add_argument('folder', type=Path, help='its *.jpg are labelled')
    parser.add_argument('--out', type=Path, required=True, help='the file in COCO format to write')
    parser.add_argument('--keep', type=float, default=0.35, help='score of an object, at least')
    parser.add_argument('--ignore', type=float, default=0.2, help='score of a doubtful box')
    options = parser.parse_args(arguments)
    teacher = PicoDet(options.teacher)
    part = options.out.with_name(options.out.name + '.part')
    part.touch()
    lines = [line for line in part.read_text().splitlines(keepends=True) if line.endswith('\n')]
    part.write_text(''.join(lines))  # without the half line of a killed command
    files = sorted(options.folder.glob('*.jpg'))
    with part.open('a') as file:
        for photograph in tqdm(files[len(lines) :], initial=len(lines), total=len(files)):
            entry = label(teacher, photograph, options.keep, options.ignore)
            lines.append(json.dumps(entry) + '\n')
            file.write(lines[-1])
    images = [json.loads(line) for line in lines]
    annotations = [image.pop('annotations') for image in images]
    boxes, ignored = write_coco(images, annotations, options.out)
    part.unlink()
    print(f'{len(images):,} photographs, {boxes:,} boxes, {ignored:,} ignored')


if __name__ == '__main__':
    run_main(main)
