"""The models for users of timm: `import mmpola.timm` registers them.

    timm.create_model('pola_swin_tiny', num_classes=10, drop_path_rate=0.2, checkpoint_path='pola_swin_t.pth')
    timm.create_model('polaformer_pp_b2', features_only=True, out_indices=(1, 2, 3))

Models accept `num_classes`, `in_chans`, `img_size` (the image size for which position tables are learned), `drop_rate`,
`drop_path_rate` and all other arguments of their backbone. `checkpoint_path` reads the authors' files and checkpoints
of MMEngine and timm. To start from a file with another number of classes, load it first, then call `reset_classifier`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from timm.models import FeatureInfo, generate_default_cfgs, register_model, resolve_pretrained_cfg
from torch import Tensor, nn

from mmpola.backbones.base import Backbone
from mmpola.backbones.classifier import Classifier, ModelWithBackbone, head_layer, head_spec
from mmpola.backbones.named import NAMED
from mmpola.checkpoint.hub import RELEASED
from mmpola.checkpoint.reading import extend_torch_allow_list
from mmpola.checkpoint.weights import fit_weights

NEVER_RELEASED = 'pola_pvt_v2 and pola_deit'

default_cfgs = generate_default_cfgs(
    {
        name: {'input_size': (3, *(arguments.get('pretrain_img_size', 224),) * 2), 'classifier': 'head'}
        for name, (_, arguments) in NAMED.items()
    }
)
"""Read by timm's `register_model`. Evaluation is the authors': 7/8 centre crop, bicubic, ImageNet's mean and std."""

extend_torch_allow_list()  # timm reads with weights_only=True, which refuses the yacs config in the authors' files


class TimmWeights(ModelWithBackbone):
    """A model whose `load_state_dict` accepts the weights of every file that `init_cfg` accepts."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load tensors under the authors', MMEngine's or timm's names, with position tables resized.

        Args:
            state_dict: tensors by name.
            strict: load all tensors of the model or none; if False, load the tensors whose names the model has.
            assign: see `torch.nn.Module.load_state_dict`.

        Raises:
            CheckpointError: with `strict`, if tensors do not fit; the message lists them.
        """
        if strict:
            state_dict, _ = fit_weights(self, state_dict, 'state_dict')
        return super().load_state_dict(state_dict, strict=False, assign=assign)


class TimmClassifier(TimmWeights, Classifier):
    """A classifier with the methods that timm's scripts call."""

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layer by one with random weights; with num_classes=0, forward returns the pooled features.

        Raises:
            ValueError: `global_pool` is neither None nor 'avg', the mean over tokens.
        """
        _check_pool(global_pool)
        self.num_classes = num_classes
        head = head_layer(self.num_features, num_classes, convolution=self.proj is not None)
        self.head = head.to(next(self.backbone.parameters()))


class TimmFeatures(TimmWeights):
    """The model of `features_only=True`: a backbone and timm's description of its maps."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        stages = zip(backbone.embed_dims, backbone.strides, strict=True)
        info = [{'num_chs': dim, 'reduction': stride, 'module': 'backbone'} for dim, stride in stages]
        self.feature_info = FeatureInfo(info, backbone.out_indices)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images [B, in_chans, H, W] -> a list of maps [B, C_i, h_i, w_i], one per entry of `out_indices`."""
        return list(self.backbone(images))


def _check_pool(global_pool: str | None) -> None:
    if global_pool not in (None, 'avg'):
        raise ValueError(f"global_pool: expected None or 'avg', got {global_pool!r}")


def _register(name: str) -> Callable[..., nn.Module]:
    """Register the model of that name in `NAMED` with timm and return its entry point."""
    backbone, settings = NAMED[name]

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
                f'pretrained: pass checkpoint_path=PATH; released weights: {RELEASED} (none of {NEVER_RELEASED})'
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
    return register_model(create)


pola_pvt_tiny = _register('pola_pvt_tiny')
pola_pvt_small = _register('pola_pvt_small')
pola_pvt_medium = _register('pola_pvt_medium')
pola_pvt_large = _register('pola_pvt_large')
pola_pvt_v2_b0 = _register('pola_pvt_v2_b0')
pola_pvt_v2_b1 = _register('pola_pvt_v2_b1')
pola_pvt_v2_b2 = _register('pola_pvt_v2_b2')
pola_pvt_v2_b3 = _register('pola_pvt_v2_b3')
pola_pvt_v2_b4 = _register('pola_pvt_v2_b4')
pola_pvt_v2_b5 = _register('pola_pvt_v2_b5')
pola_swin_tiny = _register('pola_swin_tiny')
pola_swin_small = _register('pola_swin_small')
pola_swin_base = _register('pola_swin_base')
pola_swin_base_384 = _register('pola_swin_base_384')
pola_deit_tiny = _register('pola_deit_tiny')
pola_deit_small = _register('pola_deit_small')
pola_deit_base = _register('pola_deit_base')
polaformer_pp_b0 = _register('polaformer_pp_b0')
polaformer_pp_b1 = _register('polaformer_pp_b1')
polaformer_pp_b2 = _register('polaformer_pp_b2')
polaformer_pp_b3 = _register('polaformer_pp_b3')
polaformer_pp_b4 = _register('polaformer_pp_b4')
polaformer_pp_b5 = _register('polaformer_pp_b5')
