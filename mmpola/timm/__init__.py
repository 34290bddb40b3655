"""The models for users of timm: `import mmpola.timm` registers them.

    timm.create_model('pola_swin_tiny', pretrained=True, num_classes=10, drop_path_rate=0.2)
    timm.create_model('polaformer_pp_b2', features_only=True, out_indices=(1, 2, 3))

Models take `num_classes`, `in_chans`, `global_pool`, `img_size` (the image size that position
tables are learned on), `device`, `dtype`, and all arguments of their backbone. Its `drop_rate` is
the dropout rate on tokens, projections and MLPs, not only before the head. `dynamic_img_size` and
`strict_img_size` change nothing: the models take images of every size. `features_only=True` takes
timm's `feature_cls` 'list', 'dict', 'hook' (a list too) and 'getter'.

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
from timm.models._builder import pretrained_cfg_for_features
from timm.models._features import (
    FeatureDictNet,
    FeatureGetterNet,
    FeatureHookNet,
    FeatureListNet,
)
from torch import nn

from mmpola.backbones import named_backbone
from mmpola.timm.models import (
    TimmClassifier,
    TimmFeatureDict,
    TimmFeatures,
    TimmModel,
    default_maps,
)
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

FEATURE_CLASSES: dict[Any, type[TimmModel]] = {
    'list': TimmFeatures,
    'hook': TimmFeatures,
    'dict': TimmFeatureDict,
    'getter': TimmClassifier,
    FeatureListNet: TimmFeatures,
    FeatureHookNet: TimmFeatures,
    FeatureDictNet: TimmFeatureDict,
    FeatureGetterNet: TimmClassifier,
}
"""The model for each `feature_cls` of timm. Its own classes run a model's modules in a row, which
leaves out the sizes of the maps; only the getter calls `forward_intermediates`."""

CLASSIFIER_ONLY = ('num_classes', 'global_pool', 'projection')
"""Arguments that a feature pyramid ignores."""


def _entry_point(name: str) -> Callable[..., nn.Module]:
    """Return the function that timm calls to create the model of that name."""
    backbone, variant = named_backbone(name)

    def create(
        pretrained: bool = False,
        *,
        features_only: bool = False,
        feature_cls: Any = 'list',
        cache_dir: Any = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        dynamic_img_size: Any = None,
        strict_img_size: Any = None,
        **arguments: Any,
    ) -> nn.Module:
        cls: Any = TimmClassifier
        ignored: Any = None
        settings = {**variant, **arguments}
        out_indices: Any = None
        if features_only:
            cls = _feature_class(feature_cls)
            ignored = CLASSIFIER_ONLY
        is_getter = features_only and cls is TimmClassifier
        if is_getter:
            default = default_maps(backbone, settings['arch'])
            out_indices = settings.pop('out_indices', default)
        place: Any = nullcontext()
        if device is not None:
            place = torch.device(device)
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
        if is_getter:
            return _getter(model, out_indices)
        return model

    create.__name__ = name
    create.__qualname__ = name
    return create


def _feature_class(feature_cls: Any) -> type[TimmModel]:
    """Return the model for a `feature_cls` of timm."""
    if isinstance(feature_cls, str):
        feature_cls = feature_cls.lower()
    if feature_cls not in FEATURE_CLASSES:
        names = [name for name in FEATURE_CLASSES if isinstance(name, str)]
        raise ValueError(f'feature_cls: expected one of {names}, got {feature_cls!r}')
    return FEATURE_CLASSES[feature_cls]


def _getter(model: TimmModel, out_indices: Any) -> Any:
    """Wrap a classifier in timm's getter, which removes what the maps do not need."""
    features: Any = FeatureGetterNet(model, out_indices)
    features.in_chans = model.in_chans
    features.pretrained_cfg = pretrained_cfg_for_features(model.pretrained_cfg)
    features.default_cfg = features.pretrained_cfg
    return features


for _name in NAMED:
    register_model(_entry_point(_name))


def __getattr__(name: str) -> Any:
    """Return the entry point of a model, as in timm's own modules: `mmpola.timm.pola_swin_tiny`."""
    if name not in NAMED:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return model_entrypoint(name)
