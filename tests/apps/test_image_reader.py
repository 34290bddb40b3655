"""How single images are read for a detector or segmenter."""

from mmengine.config import Config

from mmpola.apps.image_reader import image_pipeline


def test_images_are_loaded_as_the_config_says_and_annotations_are_not():
    steps = [
        {'type': 'mmdet.LoadAnnotations', 'with_bbox': True},
        {'type': 'mmdet.LoadImageFromFile', 'to_float32': True},
        {'type': 'mmdet.PackDetInputs'},
    ]
    dataset = {'type': 'RepeatDataset', 'dataset': {'type': 'CocoDataset', 'pipeline': steps}}
    assert image_pipeline(Config({'test_dataloader': {'dataset': dataset}})) == [
        {'type': 'LoadImageFromFile', 'to_float32': True},
        {'type': 'mmdet.PackDetInputs'},
    ]
