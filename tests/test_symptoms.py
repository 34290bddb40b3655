"""Messages that docs/symptoms.md quotes are printed: by mmpola, or by the library that is named.

'…' stands for what a message inserts.
"""

import ast
import ctypes
import errno
import os
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope
from torch.nn import functional as F

import mmpola
from mmpola.backbones import PolaSwin
from mmpola.ops import PowerMap, polarity_attention
from tests.helpers import ROOT


def literals(path):
    """Yield the texts of a module's strings, each as the parts between what it inserts."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield [part.value for part in node.values if isinstance(part, ast.Constant)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield [node.value]


def prints(path, fragments):
    """Whether a module has a string that holds all fragments in their order."""
    pattern = '.*'.join(re.escape(fragment) for fragment in fragments)
    return any(re.search(pattern, '\n'.join(parts), re.DOTALL) for parts in literals(path))


def source_of(module):
    return Path(import_module(module).__file__)


def in_mmdet(name):
    with DefaultScope.overwrite_default_scope('mmdet'):
        MODELS.build({'type': name})


def on_triton():
    q = torch.ones(1, 4, 1, 4)
    feature_map = PowerMap(torch.full((1, 4), 3.0), torch.ones(1, 4))
    polarity_attention(q, q, q, feature_map, backend='triton')


def address_in_use():
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE).lower())


RAISED = {
    "No module named 'mmcv._ext'": lambda: import_module('mmcv._none'),
    'operator torchvision::nms does not exist': lambda: torch.library.register_fake(
        'torchvision::none', lambda x: x
    ),
    'libGL.so.1: cannot open shared object file': lambda: ctypes.CDLL('libNone.so.1'),
    'mmpola.PolaSwin is not in the … registry': lambda: in_mmdet('mmpola.None'),
    "backend 'triton' cannot run: …": on_triton,
    'PolaSwin is not in the mmdet::model registry': lambda: in_mmdet('PolaSwin'),
    'unexpected keyword argument': lambda: PolaSwin('tiny', alfa=3),
    'Target … is out of bounds': lambda: F.cross_entropy(torch.zeros(1, 2), torch.tensor([2])),
    "'ConfigDict' object has no attribute 'stride'": lambda: ConfigDict().stride,
    'address already in use': address_in_use,
}
"""Messages of Python, the system and compiled code, and those that insert what is quoted."""

INSERTED = {'mmcv._ext': 'mmcv._none', '::nms': '::none', 'libGL': 'libNone'}
INSERTED['mmpola.PolaSwin'] = 'mmpola.None'

ELSEWHERE = {
    'MMCV==… is used but incompatible': 'mmdet',
    'Unknown model (…)': 'timm.models._factory',
    'Weights only load failed': 'torch.serialization',
    'The length of palette should not be less than': 'mmdet.visualization.palette',
    'palette does not match classes': 'mmseg.datasets.basesegdataset',
    'unexpected key in source state_dict: …': 'mmengine.runner.checkpoint',
    'Expected more than 1 value per channel when training': 'torch.nn.functional',
}
"""Message -> the module of another library that prints it."""

NOT_RAISED_HERE = {
    'nms_impl: implementation for device cuda:0 not found',  # a compiled mmcv
    "KeyError: 'iscrowd'",  # pycocotools reads the key
    "KeyError: 'labels'",  # mmdet's VOCMetric does, see test_trial.py
    'segm is not in results',  # there too
    'Expected to have finished reduction in the prior iteration',  # torch's reducer, in C++
    'CUDA out of memory',
    'roi_align_backward_kernel does not have a deterministic implementation',  # on a GPU
}


def quoted():
    """Return the messages in the columns 'message or symptom'."""
    text = (ROOT / 'docs' / 'symptoms.md').read_text()
    tables = re.findall(
        r'^\| message or symptom \|.*\n\| --- .*\n((?:\|.*\n)+)', text, re.MULTILINE
    )
    found = []
    for cell in re.findall(r'^\| (.+?) \|', ''.join(tables), re.MULTILINE):
        found += [quote for quote in re.findall(r'`([^`]+)`', cell) if ' ' in quote]
    return found


@pytest.mark.parametrize('quote', quoted())
def test_a_quoted_message_is_printed(quote):
    if quote in NOT_RAISED_HERE or quote.startswith('tools/'):
        return
    fragments = quote.split('…')
    if quote in RAISED:
        with pytest.raises((Exception, OSError)) as raised:
            RAISED[quote]()
        message = str(raised.value)
        for quoted_word, word in INSERTED.items():
            message = message.replace(word, quoted_word)
        pattern = '.*'.join(re.escape(fragment) for fragment in fragments)
        assert re.search(pattern, message, re.DOTALL), message
    elif quote in ELSEWHERE:
        assert prints(source_of(ELSEWHERE[quote]), fragments)
    else:
        modules = Path(mmpola.__file__).parent.rglob('*.py')
        assert any(prints(path, fragments) for path in modules), 'no string of mmpola has it'


def test_the_lists_name_quotes_of_the_page():
    assert {*RAISED, *ELSEWHERE, *NOT_RAISED_HERE} <= set(quoted())
