"""A file of another model is recognised."""

import pytest
import torch
from mmengine.registry import MODELS

from mmpola import PolaSwin
from mmpola.backbones import named_backbone
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.load import load_content


def tensors_of(name, prefix=''):
    """Return a state dict of a named model without memory: every tensor is one expanded zero."""
    cls, arguments = named_backbone(name)
    with torch.device('meta'):
        backbone = cls(**arguments)
    found = {}
    for key, x in backbone.state_dict().items():
        found[f'{prefix}{key}'] = torch.zeros((), dtype=x.dtype).expand(x.shape)
    return found


@pytest.mark.parametrize('name', ['pola_pvt_tiny', 'pola_swin_small', 'polaformer_pp_b1'])
def test_weights_of_another_model_are_named(name):
    with torch.device('meta'):
        model = PolaSwin('tiny')
    with pytest.raises(CheckpointError) as raised:
        load_content(model, tensors_of(name), 'file.pth')
    assert str(raised.value) == (
        'file.pth: does not fit PolaSwin; nothing was loaded; its tensors look like those of '
        f'{name}'
    )


def test_a_classifier_names_them_too():
    backbone = {'type': 'mmpola.PolaPVT', 'arch': 'tiny'}
    with torch.device('meta'):
        model = MODELS.build(
            {'type': 'mmpola.ImageClassifier', 'backbone': backbone, 'num_classes': 9}
        )
    with pytest.raises(CheckpointError, match='look like those of pola_swin_tiny'):
        load_content(model, tensors_of('pola_swin_tiny', 'backbone.'), 'a.pth')


def test_a_damaged_file_of_the_same_model_lists_its_tensors():
    with torch.device('meta'):
        model = PolaSwin('tiny')
    weights = tensors_of('pola_swin_tiny')
    del weights['stem.proj.weight']
    with pytest.raises(CheckpointError, match=r'missing: stem\.proj\.weight'):
        load_content(model, weights, 'file.pth')


@pytest.mark.parametrize('name', ['pola_swin_nano', 'pola_pvt_nano'])
def test_tables_of_another_image_size_do_not_make_another_model(name):
    """A file without output norms and grids, for a rectangular model: the tables are the cause."""
    cls, arguments = named_backbone(name)
    with torch.device('meta'):
        model = cls(**{**arguments, 'pretrain_img_size': (64, 256)})
    weights = {}
    for key, x in tensors_of(name).items():
        if not key.startswith('norms.'):
            weights[key] = x
    with pytest.raises(CheckpointError) as raised:
        load_content(model, weights, 'file.pth')
    assert 'which names no grid' in str(raised.value)
    assert 'look like' not in str(raised.value)
