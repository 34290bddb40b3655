"""Scoped names build without a registered module; imports need what they promise."""

import sys
from importlib import import_module

import mmengine.registry
import pytest

import mmpola.registry
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
        'mmpola.engine',
        'mmpola.apps',
        'mmpola.lra',
        'mmpola.timm',
    )
    assert [name for name in imported if name.startswith(unneeded)] == []


def test_public_names_are_attributes_of_the_package():
    assert set(dir(mmpola)) == {*mmpola.PUBLIC_NAMES, '__version__'}
    for name, module in mmpola.PUBLIC_NAMES.items():
        assert getattr(mmpola, name) is getattr(import_module(module), name)
    with pytest.raises(AttributeError, match='PolaSwim'):
        mmpola.PolaSwim  # noqa: B018


@pytest.mark.parametrize('parent', mmpola.registry.REGISTERED_NAMES)
def test_every_listed_name_is_found_by_configs(parent):
    registry = getattr(mmengine.registry, parent)
    for name, module in mmpola.registry.REGISTERED_NAMES[parent].items():
        found = registry.get(f'mmpola.{name}')
        assert found is getattr(import_module(module), name)
        assert found.__module__ == module
        assert getattr(mmpola.registry, parent).get(name) is found


def test_an_unknown_name_imports_nothing():
    before = set(sys.modules)
    with pytest.raises(KeyError, match=r'PolaSwim is not in the \w+::model registry'):
        mmengine.registry.MODELS.build({'type': 'mmpola.PolaSwim'})
    assert not [name for name in set(sys.modules) - before if name.startswith('mmpola')]


@pytest.mark.slow
def test_the_operator_needs_torch_alone():
    others = ('timm', 'einops', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'triton', 'torchvision')
    code = 'import mmpola.ops; print(mmpola.ops.available_backends())'
    assert output_of(code, without=others) == "['torch']\n"
