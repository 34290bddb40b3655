"""Under bfloat16, regions and deformable attention keep float32 coordinates."""

from types import SimpleNamespace

import pytest
import torch
from mmcv.ops import MultiScaleDeformableAttention
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor

from mmpola.pretraining.float32_sampling import Float32SamplingHook


def prepared(module):
    Float32SamplingHook().before_run(SimpleNamespace(model=module))
    return module


def test_regions_are_read_where_they_are():
    layer = {'type': 'RoIAlign', 'output_size': 1, 'sampling_ratio': 1}
    extractor = SingleRoIExtractor(layer, out_channels=1, featmap_strides=[8])
    columns = torch.arange(128).expand(1, 1, 8, 128).bfloat16()  # exact in bfloat16
    regions = torch.tensor([[0, 1001.0, 8, 1002.5, 24]])
    centre = 1001.75 / 8 - 0.5
    with torch.autocast('cpu', dtype=torch.bfloat16):
        rounded = extractor([columns], regions)
        exact = prepared(extractor)([columns], regions)
    assert abs(rounded.item() - centre) > 0.02
    assert exact.item() == pytest.approx(centre, abs=1e-4)


def test_deformable_attention_samples_float32_values():
    attention = prepared(MultiScaleDeformableAttention(8, num_heads=2, num_levels=1))
    values = []
    attention.value_proj.register_forward_hook(lambda module, inputs, output: values.append(output))
    query = torch.randn(1, 4, 8)
    inputs = {
        'reference_points': torch.rand(1, 4, 1, 2),
        'spatial_shapes': torch.tensor([[2, 2]]),
        'level_start_index': torch.tensor([0]),
    }
    with torch.autocast('cpu', dtype=torch.bfloat16):
        attention(query.transpose(0, 1), value=query.transpose(0, 1), **inputs)
    assert values[0].dtype == torch.float32
