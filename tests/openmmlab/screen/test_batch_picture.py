"""Pictures of batches: colours, annotations and captions."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmdet.models.data_preprocessors import DetDataPreprocessor
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from mmseg.models import SegDataPreProcessor
from mmseg.structures import SegDataSample
from timm.data import create_transform

from mmpola.openmmlab.screen.batch_picture import CAPTION, class_text, draw_batch, enlarged
from mmpola.pretraining.preprocessor import ClassificationPreprocessor

MEAN = [123.675, 116.28, 103.53]
STD = [58.395, 57.12, 57.375]
RED = (200, 20, 10)
SIDE = 400  # pixels; not enlarged


def red_image(*, bgr):
    """Return uint8 [3, SIDE, SIDE], all red, in the order of mmcv or in RGB."""
    colour = RED
    if bgr:
        colour = RED[::-1]
    return torch.tensor(colour, dtype=torch.uint8).view(3, 1, 1).repeat(1, SIDE, SIDE)


def has_colour(picture, colour, tolerance=3):
    difference = np.abs(np.asarray(picture).astype(int) - np.array(colour)).max(axis=2)
    return bool((difference <= tolerance).any())


@pytest.mark.parametrize('bgr_to_rgb', [True, False])
def test_boxes_and_masks_are_drawn_on_the_denormalised_image(bgr_to_rgb):
    """A model that reads blue first gives a picture with the right colours too."""
    sample = DetDataSample(metainfo={'img_path': 'folder/red.jpg', 'img_shape': (SIDE, SIDE)})
    mask = np.zeros((1, SIDE, SIDE), np.uint8)
    mask[0, 120:180, 120:180] = 1
    sample.gt_instances = InstanceData(
        bboxes=torch.tensor([[100.0, 100, 200, 200]]),
        labels=torch.tensor([1]),
        masks=BitmapMasks(mask, SIDE, SIDE),
    )
    preprocessor = DetDataPreprocessor(MEAN, STD, bgr_to_rgb=bgr_to_rgb)
    data = {'inputs': [red_image(bgr=True)], 'data_samples': [sample]}
    batch = preprocessor(data, training=True)
    palette = [(0, 0, 255), (0, 255, 0)]
    dataset = SimpleNamespace(metainfo={'classes': ('dog', 'cat'), 'palette': palette})
    picture = draw_batch(batch, preprocessor, dataset)
    assert picture.size == (SIDE, SIDE + CAPTION)
    pixels = np.asarray(picture)
    assert np.abs(pixels[10, 10].astype(int) - RED).max() <= 2  # outside the box
    edge = pixels[150, 98:103].astype(int)
    assert (edge[:, 1] > 100).any() and edge[:, 2].max() < 60  # green over red, not blue
    assert pixels[150, 150, 1] > 60  # the mask
    assert (pixels[SIDE:] < 100).any()  # the caption
    assert sample.gt_instances.bboxes.shape == (1, 4)


def test_label_maps_are_drawn_in_the_colours_of_the_data_set():
    sample = SegDataSample(metainfo={'img_path': 'a.png'})
    labels = torch.zeros(1, SIDE, SIDE, dtype=torch.long)
    labels[:, :, SIDE // 2 :] = 1
    sample.gt_sem_seg = PixelData(data=labels)
    preprocessor = SegDataPreProcessor(MEAN, STD, size=(SIDE, SIDE), bgr_to_rgb=True)
    data = {'inputs': [red_image(bgr=True)], 'data_samples': [sample]}
    batch = preprocessor(data, training=True)
    palette = [[0, 0, 200], [0, 200, 0]]
    dataset = SimpleNamespace(metainfo={'classes': ('sky', 'tree'), 'palette': palette})
    picture = draw_batch(batch, preprocessor, dataset)
    assert has_colour(picture, (100, 10, 105))  # half red, half blue
    assert has_colour(picture, (100, 110, 5))  # half red, half green


@pytest.mark.parametrize('boxes', [torch.Tensor, HorizontalBoxes])
def test_small_images_are_enlarged_before_names_are_drawn(boxes):
    """Boxes, masks and label maps with them; the batch stays as it is."""
    image = np.zeros((100, 150, 3), np.uint8)
    image[20:40, 30:60] = 255
    mask = np.zeros((1, 100, 150), np.uint8)
    mask[0, 20:40, 30:60] = 1
    sample = DetDataSample(metainfo={'img_shape': (100, 150)})
    sample.gt_instances = InstanceData(
        bboxes=boxes([[30.0, 20, 60, 40]]),
        labels=torch.tensor([0]),
        masks=BitmapMasks(mask, 100, 150),
    )
    sample.gt_sem_seg = PixelData(sem_seg=torch.from_numpy(mask))
    larger, drawn = enlarged(image, sample)
    assert larger.shape == (400, 600, 3)
    expected = np.zeros((400, 600), bool)
    expected[80:160, 120:240] = True
    assert ((larger[..., 0] > 127) == expected).mean() > 0.99
    assert drawn.gt_instances.bboxes.tolist() == [[120, 80, 240, 160]]
    assert (drawn.gt_instances.masks.masks[0] == expected).mean() > 0.99
    assert np.array_equal(drawn.gt_sem_seg.sem_seg[0], expected)
    assert sample.gt_instances.bboxes.numpy().tolist() == [[30, 20, 60, 40]]
    assert sample.gt_sem_seg.sem_seg.shape == (1, 100, 150)


@pytest.mark.parametrize(('size', 'drawn'), [((8, 1000), (16, 2000)), ((8, 3000), (8, 3000))])
def test_a_narrow_strip_is_not_enlarged_without_end(size, drawn):
    larger, _ = enlarged(np.zeros((*size, 3), np.uint8), DetDataSample())
    assert larger.shape == (*drawn, 3)


def test_a_classifier_shows_its_images_and_the_classes_of_mixed_ones():
    """timm's transform normalises, not the preprocessor."""
    preprocessor = ClassificationPreprocessor()
    dataset = SimpleNamespace(
        metainfo={'classes': ('red', 'green')}, transform=create_transform(SIDE)
    )
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    image = (red_image(bgr=False) / 255 - mean) / std
    plain = BaseDataElement(metainfo={'img_path': 'a.png'}, gt_label=0)
    mixed = BaseDataElement(gt_score=torch.tensor([0.3, 0.7]))
    batch = {'inputs': torch.stack([image, image]), 'data_samples': [plain, mixed]}
    picture = draw_batch(batch, preprocessor, dataset)
    assert picture.size == (2 * SIDE, SIDE + CAPTION)
    assert picture.getpixel((5, 5)) == RED
    assert picture.getpixel((SIDE + 5, 5)) == RED


@pytest.mark.parametrize(
    ('mixup', 'pattern'),
    [
        (None, r'cat'),
        ({'mixup_alpha': 1.0, 'mode': 'batch'}, r'(cat|dog) 0\.\d\d, (cat|dog) 0\.\d\d'),
    ],
)
def test_the_text_names_labels_without_their_smoothing(mixup, pattern):
    np.random.seed(0)
    preprocessor = ClassificationPreprocessor(mixup=mixup, label_smoothing=0.3)
    preprocessor.num_classes = 3
    samples = [BaseDataElement(gt_label=label) for label in (2, 1)]
    batch = preprocessor({'inputs': torch.zeros(2, 3, 8, 8), 'data_samples': samples}, True)
    text = class_text(batch['data_samples'][0], ['bird', 'dog', 'cat'], 0.3)
    assert re.fullmatch(pattern, text), text
    if mixup:
        assert sum(float(number) for number in re.findall(r'0\.\d\d', text)) == pytest.approx(1)
