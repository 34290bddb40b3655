"""What imports of mmpola import, in new processes."""

import pytest

from tests.helpers.processes import output_of


@pytest.mark.slow
@pytest.mark.parametrize('package', ['mmdet', 'mmseg', 'mmpretrain'])
def test_scoped_names_build_inside_an_openmmlab_package(package):
    """`import mmpola` registers nothing: mmcv-lite needs it, and a compiled mmcv does not."""
    pytest.importorskip(package)
    output = output_of(
        f"""
        import mmpola, torch
        from {package}.registry import MODELS
        swin = dict(type='mmpola.PolaSwin', arch='tiny')
        pvt = dict(type='mmpola.PolaPVT', arch='tiny')
        plus = dict(type='mmpola.PolaFormerPP', arch='b0')
        classifier = dict(type='mmpola.ImageClassifier', backbone=swin, num_classes=3)
        with torch.device('meta'):
            print(*[type(MODELS.build(model)).__name__ for model in (swin, pvt, plus, classifier)])
        """
    )
    assert output.splitlines()[-1] == 'PolaSwin PolaPVT PolaFormerPP ImageClassifier'


@pytest.mark.slow
def test_importing_the_package_imports_nothing_else():
    code = "import sys, mmpola; print({'torch', 'mmcv', 'mmengine'} & sys.modules.keys())"
    assert output_of(code) == 'set()\n'


@pytest.mark.slow
def test_a_backbone_imports_neither_the_runner_nor_data_sets():
    output = output_of(
        """
        import sys, torch
        from mmengine.registry import MODELS
        with torch.device('meta'):
            for name in ('PolaSwin', 'PolaPVT', 'PolaFormerPP'):
                MODELS.build(dict(type=f'mmpola.{name}'))
        print(*sys.modules)
        """
    )
    imported = output.split()
    unneeded = (
        'mmengine.runner',
        'pycocotools',
        'mmpola.openmmlab.checks',
        'mmpola.openmmlab.config',
        'mmpola.openmmlab.run',
        'mmpola.papers',
        'mmpola.timm',
    )
    assert [name for name in imported if name.startswith(unneeded)] == []


@pytest.mark.slow
def test_the_operator_needs_torch_alone():
    others = ('timm', 'einops', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'triton', 'torchvision')
    code = 'import mmpola.ops; print(mmpola.ops.available_backends())'
    assert output_of(code, without=others) == "['torch']\n"
