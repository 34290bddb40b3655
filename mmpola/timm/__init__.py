"""The models for users of timm: `import mmpola.timm` registers them.

    timm.create_model('pola_swin_tiny', pretrained=True, num_classes=10, drop_path_rate=0.2)
    timm.create_model('polaformer_pp_b2', features_only=True, out_indices=(1, 2, 3))

Models take `num_classes`, `in_chans`, `global_pool`, `img_size` (the image size that position
tables are learned on), `device`, `dtype`, and all arguments of their backbone. Its `drop_rate` is
the dropout rate on tokens, projections and MLPs, not only before the head.

`pretrained=True` loads `checkpoints/NAME.pth` if it exists, and otherwise downloads the authors'
weights; `timm.list_models('pola*', pretrained=True)` lists the models that have some to download.
`pretrained_cfg_overlay=dict(file=NAME)` names another file, with any name that
`mmpola.checkpoint.hub` knows, from the authors, from MMEngine or from timm. If it has another
number of classes, the head is new; if it has another number of input channels, the first
convolution is converted. A local file given as `checkpoint_path=PATH` must fit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from timm.models import (
    build_model_with_cfg,
    generate_default_cfgs,
    model_entrypoint,
    register_model,
)
from torch import nn

from mmpola.backbones import named_backbone
from mmpola.timm.models import TimmClassifier, TimmFeatures, TimmModel
from mmpola.timm.pretrained import load_pretrained, pretrained_config
from mmpola.zoo import NAMED

# timm adds the models to this list.
__all__ = ['TimmClassifier', 'TimmFeatures', 'TimmModel', 'default_cfgs']

default_cfgs = generate_default_cfgs({name: pretrained_config(name) for name in NAMED})
"""The config of each model, which timm's `register_model` reads.

Images are evaluated as by the authors: resized to 256 x 256 whatever their ratio (bicubic), cropped
to the central 224 x 224, and normalised by ImageNet's mean and standard deviation. At 384 x 384 the
whole image is used.
"""

CLASSIFIER_ONLY = ('num_classes', 'global_pool', 'projection')
"""Arguments that a feature pyramid ignores."""


def _entry_point(name: str) -> Callable[..., nn.Module]:
    """Return the function that timm calls to create the model of that name."""
    backbone, variant = named_backbone(name)

    def create(
        pretrained: bool = False,
        *,
        features_only: bool = False,
        cache_dir: Any = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **arguments: Any,
    ) -> nn.Module:
        cls: Any = TimmClassifier
        ignored: Any = None
        if features_only:
            cls = TimmFeatures
            ignored = CLASSIFIER_ONLY
        place: Any = nullcontext()
        if device is not None:
            place = torch.device(device)
        settings = {**variant, **arguments}
        with place:
            model: TimmModel = build_model_with_cfg(
                partial(cls, backbone),
                name,
                # timm's own loader knows neither the authors' names nor resized tables.
                pretrained=False,
                kwargs_filter=ignored,
                **settings,
            )
        if dtype is not None:
            model = model.to(dtype)
        if pretrained:
            load_pretrained(model, cache_dir)
        return model

    create.__name__ = name
    create.__qualname__ = name
    return create


for _name in NAMED:
    register_model(_entry_point(_name))


def __getattr__(name: str) -> Any:
    """Return the entry point of a model, as in timm's own modules: `mmpola.timm.pola_swin_tiny`."""
    if name not in NAMED:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return model_entrypoint(name)
