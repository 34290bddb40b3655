"""The models for people outside OpenMMLab: `import mmpola.timm` registers them with timm.

    timm.create_model('pola_swin_tiny', num_classes=10, drop_path_rate=0.2, checkpoint_path='pola_swin_t.pth')
    timm.create_model('polaformer_pp_b2', features_only=True, out_indices=(1, 2, 3))

`num_classes`, `in_chans`, `img_size` (the grid that position tables are learned on), `drop_rate`, `drop_path_rate` and
all further arguments of the backbone are taken. `checkpoint_path` takes the authors' files and checkpoints of either
door; of a file with another number of classes, load it first and call `reset_classifier` then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from timm.models import FeatureInfo, generate_default_cfgs, register_model, resolve_pretrained_cfg
from torch import Tensor, nn

from mmpola.backbones.base import Backbone
from mmpola.backbones.classifier import Classifier, OnBackbone, head_spec
from mmpola.backbones.named import NAMED
from mmpola.checkpoint.reading import PUBLISHED, extend_torch_allow_list
from mmpola.checkpoint.weights import fit_weights

NEVER_RELEASED = 'pola_pvt_v2 and pola_deit'

default_cfgs = generate_default_cfgs(
    {
        name: {'input_size': (3, *(arguments.get('pretrain_img_size', 224),) * 2), 'classifier': 'head'}
        for name, (_, arguments) in NAMED.items()
    }
)
"""Read by `register_model`. Evaluation is the authors': 7/8 centre crop, bicubic, ImageNet's mean and deviation."""

extend_torch_allow_list()  # timm reads with weights_only=True, which refuses the yacs config in the authors' files


class TimmWeights(OnBackbone):
    """Takes in `load_state_dict` what timm's `checkpoint_path` reads: the same files as MMEngine's door."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load names of either door, tables resized; with `strict`, whole or not at all.

        Raises:
            CheckpointError: `strict`, and tensors do not fit: the message lists them.
        """
        if strict:
            state_dict, _ = fit_weights(self, state_dict, 'state_dict')
        return super().load_state_dict(state_dict, strict=False, assign=assign)


class TimmClassifier(TimmWeights, Classifier):
    """A classifier with the methods that timm's scripts call."""

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new last layer; none with num_classes=0, when forward returns the features under it.

        Raises:
            ValueError: another pooling than the mean over tokens is asked for.
        """
        _check_pool(global_pool)
        self.add_head(num_classes)
        self.head.to(next(self.backbone.parameters()))


class TimmFeatures(TimmWeights):
    """`features_only=True`: a list of maps [B, C_i, h_i, w_i], one per entry of `out_indices`."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        stages = zip(backbone.embed_dims, backbone.strides, strict=True)
        info = [{'num_chs': dim, 'reduction': stride, 'module': 'backbone'} for dim, stride in stages]
        self.feature_info = FeatureInfo(info, backbone.out_indices)

    def forward(self, images: Tensor) -> list[Tensor]:
        return list(self.backbone(images))


def _check_pool(global_pool: str | None) -> None:
    if global_pool not in (None, 'avg'):
        raise ValueError(f"global_pool: expected None or 'avg', got {global_pool!r}")


def _entry(name: str, backbone: type[Backbone], settings: dict[str, Any]) -> Callable[..., nn.Module]:
    """timm's entry point of one model."""

    def create(
        pretrained: bool = False,
        pretrained_cfg: Any = None,
        pretrained_cfg_overlay: dict[str, Any] | None = None,
        cache_dir: Any = None,
        *,
        features_only: bool = False,
        out_indices: Sequence[int] | None = None,
        num_classes: int = 1000,
        global_pool: str | None = None,
        projection: int | None = None,
        in_chans: int = 3,
        img_size: int | tuple[int, int] | None = None,
        **further: Any,
    ) -> nn.Module:
        if pretrained:
            raise ValueError(
                f'pretrained: nothing is downloaded, pass checkpoint_path=PATH; {PUBLISHED} (none of {NEVER_RELEASED})'
            )
        _check_pool(global_pool)
        arguments = {**settings, 'in_channels': in_chans, **further}
        if img_size is not None:
            arguments['pretrain_img_size'] = img_size
        model: TimmClassifier | TimmFeatures
        if features_only:
            if out_indices is not None:
                arguments['out_indices'] = tuple(out_indices)
            model = TimmFeatures(backbone(**{'out_norm': head_spec(backbone).out_norm, **arguments}))
        else:
            model = TimmClassifier(backbone, num_classes, projection=projection, arguments=arguments)
        model.pretrained_cfg = resolve_pretrained_cfg(name, pretrained_cfg, pretrained_cfg_overlay).to_dict()
        model.default_cfg = model.pretrained_cfg
        return model

    create.__name__ = create.__qualname__ = name
    return create


for _name, (_backbone, _settings) in NAMED.items():
    globals()[_name] = register_model(_entry(_name, _backbone, _settings))
