"""Scoped names build from processes that imported nothing of ours; imports stay as light as they promise."""

import subprocess
import sys
import textwrap

import pytest


def run(code, root):
    """Standard output of a fresh interpreter."""
    result = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(code)], capture_output=True, text=True, cwd=root, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in BLOCKED:
            raise ModuleNotFoundError(f'{name} is blocked', name=name)
sys.meta_path.insert(0, Block())
"""


def test_a_scoped_name_builds_inside_mmdet_without_imports(root):
    output = run(
        """
        import mmdet.registry
        from mmengine.registry import init_default_scope
        init_default_scope('mmdet')
        arch = dict(embed_dims=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8))
        print(type(mmdet.registry.MODELS.build(dict(type='mmpola.PolaSwin', arch=arch))).__name__)
        """,
        root,
    )
    assert output.splitlines()[-1] == 'PolaSwin'


def test_a_scoped_name_builds_inside_mmseg_without_imports(root):
    output = run(
        """
        from mmseg.registry import MODELS
        arch = dict(embed_dims=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8))
        print(type(MODELS.build(dict(type='mmpola.PolaSwin', arch=arch))).__name__)
        """,
        root,
    )
    assert output.splitlines()[-1] == 'PolaSwin'


def test_a_misspelt_argument_is_named(root):
    from mmengine.registry import MODELS

    with pytest.raises(TypeError) as raised:
        MODELS.build({'type': 'mmpola.PolaSwin', 'windw_size': 7})
    assert "__init__() got an unexpected keyword argument 'windw_size'" in str(raised.value)


def test_backbones_import_with_triton_and_openmmlab_blocked(root):
    output = run(
        "BLOCKED = {'triton', 'mmcv', 'mmdet', 'mmseg', 'mmengine'}"
        + BLOCK
        + textwrap.dedent(
            """
            import torch
            from mmpola.backbones import PolaSwin
            model = PolaSwin(dict(embed_dims=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8)))
            print(len(model(torch.zeros(1, 3, 32, 32))))
            """
        ),
        root,
    )
    assert output == '4\n'


def test_importing_the_package_imports_nothing_else(root):
    output = run("import sys, mmpola; print('torch' in sys.modules, mmpola.__version__)", root)
    assert output.startswith('False ')


def test_the_operator_needs_torch_alone(root):
    output = run(
        "BLOCKED = {'timm', 'einops', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'triton', 'torchvision'}"
        + BLOCK
        + '\nimport mmpola.ops; print(mmpola.ops.available_backends())',
        root,
    )
    assert output == "['reference']\n"
