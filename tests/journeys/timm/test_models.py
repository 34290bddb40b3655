"""The models in timm, in a process without OpenMMLab."""

import pytest

from tests.helpers.processes import output_of


@pytest.mark.slow
def test_works_without_openmmlab_and_triton():
    code = """
    import timm, torch, mmpola.timm
    arch = dict(embed_dims=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8))
    model = timm.create_model('pola_swin_tiny', arch=arch, num_classes=3)
    print(tuple(model(torch.zeros(1, 3, 32, 32)).shape))
    """
    assert output_of(code, without=('mmengine', 'mmcv', 'mmdet', 'mmseg', 'triton')) == '(1, 3)\n'
