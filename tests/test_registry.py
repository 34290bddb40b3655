"""The names of the package, and those by which configs find its classes."""

import sys
from importlib import import_module

import mmengine.registry
import pytest

import mmpola.backbones
import mmpola.registry


def test_public_names_are_attributes_of_the_package():
    assert set(dir(mmpola)) == {*mmpola.PUBLIC_NAMES, '__version__'}
    for name, module in mmpola.PUBLIC_NAMES.items():
        assert getattr(mmpola, name) is getattr(import_module(module), name)
    with pytest.raises(AttributeError, match='PolaSwim'):
        mmpola.PolaSwim  # noqa: B018


def test_configs_find_every_public_backbone():
    families = ('mmpola.backbones.', 'mmpola.papers.ablations.')
    names = mmpola.PUBLIC_NAMES.items()
    backbones = [name for name, module in names if module.startswith(families)]
    assert (
        set(backbones)
        == set(dir(mmpola.backbones))
        <= set(mmpola.registry.REGISTERED_NAMES['MODELS'])
    )


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
