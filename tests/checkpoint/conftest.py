"""A small backbone with its weights, and a local copy of the authors' repository on the hub."""

import pytest

from mmpola.backbones import PolaSwin
from mmpola.checkpoint.hub import RELEASED_REPOSITORY
from tests.helpers.hub_server import Hub, content, serve


@pytest.fixture
def build():
    """A function that builds a small Pola-Swin, by default for images of 64 x 64 pixels."""
    arch = {'embed_dims': 16, 'depths': (1, 1, 2, 1), 'num_heads': (1, 2, 4, 8)}
    return lambda **arguments: PolaSwin(arch, **{'pretrain_img_size': 64, **arguments})


@pytest.fixture
def weights(build):
    """Its tensors by name."""
    return build().state_dict()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with four files; caches and working directory are empty folders."""
    names = (
        'pola_swin_t.pth',
        'pola_swin_s.pth',
        'nested/polaformer_pp_b2.pth',
        'pola_pvt_t.pth',
    )
    files = {name: content(float(index)) for index, name in enumerate(names)}
    monkeypatch.chdir(tmp_path)
    with serve(Hub(RELEASED_REPOSITORY, files), tmp_path) as hub:
        yield hub
