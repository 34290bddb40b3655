"""The classifier and the feature pyramid, with the attributes and methods that timm expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from timm.layers import Format, nchw_to, to_2tuple
from timm.models import FeatureInfo
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from mmpola.backbones.base import Backbone
from mmpola.backbones.classifier import Classifier, ModelWithBackbone, head_layer
from mmpola.backbones.parameter_groups import BackboneLayers, without_weight_decay
from mmpola.checkpoint.contents import without_wrappers
from mmpola.checkpoint.grids import saved_grids
from mmpola.checkpoint.load import fit_weights, refuse_misfits
from mmpola.messages import info, listed

GLOBAL_POOLS = ('avg', '')


class TimmModel(ModelWithBackbone):
    """Loading, parameter groups and image size, which classifier and pyramid share.

    Attributes:
        output_fmt: layout of all maps.
        feature_info: per stage (PolaDeiT: per block) a dict with `num_chs`, its channels,
            `reduction`, its stride in pixels, and `module`, the name of the module whose output is
            its tokens [B, N, C].
    """

    output_fmt = 'NCHW'
    feature_info: Any
    pretrained_cfg: dict[str, Any]

    @property
    def in_chans(self) -> int:
        """Channels of the images."""
        return self.backbone.in_channels

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load tensors by the names of the authors, MMEngine or timm; resize position tables.

        Args:
            state_dict: tensors by name.
            strict: load every tensor of the model or none; otherwise load the tensors whose names
                the model has.
            assign: see `torch.nn.Module.load_state_dict`.

        Raises:
            CheckpointError: with `strict`, if tensors do not fit; the message lists them.
        """
        state_dict = without_wrappers(state_dict)
        if strict:
            weights, report = fit_weights(self, state_dict, 'state_dict')
            has_grids = bool(saved_grids(state_dict))  # timm's `checkpoint_path` drops them
            if report.resized and not has_grids:
                info(
                    'state_dict: it names no grids, so its position tables are read as square: '
                    f'{listed(report.resized)}; pretrained=True with '
                    'pretrained_cfg_overlay=dict(file=PATH) reads the grids of a file'
                )
            refuse_misfits(report)
            state_dict = weights
        return super().load_state_dict(state_dict, strict=False, assign=assign)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block's activations in the backward pass to save memory, or do not."""
        self.backbone.with_cp = enable

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Resize the learned position tables to the token grids of another image size.

        See `Backbone.set_input_size`.

        Args:
            img_size: side of the images in pixels, or (height, width).
        """
        self.backbone.set_input_size(img_size)
        # timm writes this size into the config of `save_for_hf`.
        self._traits = {**getattr(self, '_traits', {}), 'img_size': tuple(to_2tuple(img_size))}

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters without weight decay, besides biases and other vectors."""
        return without_weight_decay(self)

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        """Return the function from a parameter's name to its layer, for layer-wise learning rates.

        0 is the stem, then every block is a layer (see `BackboneLayers`), and all parameters
        outside the backbone are the last one.

        Args:
            coarse: count a stage as one layer.
        """
        names = [name for name, _ in self.backbone.named_parameters()]
        layers = BackboneLayers(names, self.backbone.optional_prefixes())

        def layer_of(name: str) -> int:
            if name.startswith('backbone.'):
                layer = layers.layer_of(name.removeprefix('backbone.'))
            else:
                layer = layers.number + 1
            if coarse:
                return layers.stage_of(layer)
            return layer

        return layer_of


class TimmClassifier(TimmModel, Classifier):
    """A classifier with the methods that timm's scripts call; all maps are [B, C, h, w].

    Args:
        backbone: class of the backbone.
        num_classes: length of the logits; 0 to return the pooled features instead.
        global_pool: 'avg', the mean over tokens, or '' for maps of logits or features.
        in_chans: channels of the images.
        img_size: side of the images in pixels, or (height, width), that position tables are learned
            on.
        projection: channels of PolaFormerPP's `proj`; None: the published number.
        arguments: further arguments of the backbone.

    Raises:
        ValueError: an argument breaks its rule; the message names it.
    """

    def __init__(
        self,
        backbone: type[Backbone],
        num_classes: int = 1000,
        *,
        global_pool: str = 'avg',
        in_chans: int = 3,
        img_size: int | tuple[int, int] | None = None,
        projection: int | None = None,
        **arguments: Any,
    ) -> None:
        _check_pool(global_pool)
        arguments = _backbone_arguments(arguments, in_chans, img_size)
        super().__init__(backbone, num_classes, projection=projection, arguments=arguments)
        self.global_pool = global_pool
        self.feature_info = _feature_info(self.backbone)

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layer by one with fresh weights.

        With num_classes=0, forward returns the pooled features.

        Args:
            num_classes: length of the logits.
            global_pool: 'avg', '' for no pooling, or None to keep the current one.

        Raises:
            ValueError: `global_pool` has another value.
        """
        if global_pool is not None:
            _check_pool(global_pool)
            self.global_pool = global_pool
        self.num_classes = num_classes
        head = head_layer(self.head_hidden_size, num_classes, convolution=self.proj is not None)
        self.head = head.to(next(self.backbone.parameters())).train(self.training)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return maps of several stages, and the result of `forward_features`.

        Args:
            x: images [B, in_chans, H, W].
            indices: stages (PolaDeiT: blocks) from 0, negative ones from the end; an integer n
                for the last n; None for all.
            norm: apply the LayerNorm before the head to the maps that have as many channels as the
                last.
            stop_early: skip the stages after the last of `indices`.
            output_fmt: layout of the maps: 'NCHW', 'NHWC', 'NCL' or 'NLC'.
            intermediates_only: return the maps only.

        Returns:
            One map per index in the order of the stages; without `intermediates_only` (x, maps),
            where x is the result of `forward_features`, or the map of the last stage that was run
            if `stop_early` skipped others.

        Raises:
            AssertionError: an index is out of range.
            ValueError: x is not [B, in_chans, H, W], or there is no such `output_fmt`.
        """
        wanted, last = feature_take_indices(self.backbone.num_stages, indices)
        layout = Format(output_fmt)
        maps = []
        for index, (tokens, grid) in enumerate(self.backbone.stage_maps(x)):
            x = tokens.transpose(1, 2).unflatten(2, grid)
            is_last = index == self.backbone.num_stages - 1
            normed = x
            if is_last or (norm and x.shape[1] == self.num_features):
                normed = self.normed(x)
            if index in wanted:
                if norm:
                    stage_map = normed
                else:
                    stage_map = x
                maps.append(nchw_to(stage_map, layout).contiguous())
            if is_last:
                x = normed
            if stop_early and index == last:
                break
        if intermediates_only:
            return maps
        return x, maps

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove everything that the maps of some stages do not need.

        The model then ends with the last of them.

        Args:
            indices: see `forward_intermediates`.
            prune_norm: remove the LayerNorm before the head; it is always removed with the last
                stage.
            prune_head: remove the head; it is always removed with the last stage.

        Returns:
            The stages of `indices`, all counted from the start.
        """
        wanted, last = feature_take_indices(self.backbone.num_stages, indices)
        prune_end = last + 1 < self.backbone.num_stages
        if prune_end:
            self.backbone.prune_stages(last + 1)
            self.feature_info = self.feature_info[: last + 1]
            self.num_features = self.backbone.embed_dims[last]
        if isinstance(self.norm, nn.LayerNorm) and (prune_norm or prune_end):
            self.norm = nn.Identity()
        if prune_head or prune_end:
            if self.proj is not None:
                self.proj = None
                self.norm = nn.Identity()
            self.head_hidden_size = self.num_features
            self.reset_classifier(0, '')
        return wanted


class TimmFeatures(TimmModel):
    """The model of `features_only=True`: a backbone and timm's description of its maps.

    Args:
        backbone: class of the backbone.
        out_indices: stages (PolaDeiT: blocks) in ascending order, negative ones from the end; an
            integer n for the last n; None for `default_maps`. Later stages are not built.
        in_chans, img_size, arguments: see `TimmClassifier`.

    Raises:
        ValueError: an argument breaks its rule; the message names it.
    """

    def __init__(
        self,
        backbone: type[Backbone],
        *,
        out_indices: int | list[int] | None = None,
        in_chans: int = 3,
        img_size: int | tuple[int, int] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        stages = backbone.stage_count(arguments['arch'])
        if out_indices is None:
            out_indices = default_maps(backbone, arguments['arch'])
        arguments = _backbone_arguments(arguments, in_chans, img_size)
        arguments.setdefault('out_norm', backbone.head.out_norm)
        arguments['out_indices'], _ = feature_take_indices(stages, out_indices)
        self.backbone = backbone(**arguments)
        self.feature_info = FeatureInfo(_feature_info(self.backbone), self.backbone.out_indices)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images [B, in_chans, H, W] -> a list of maps [B, C_i, h_i, w_i], as in `out_indices`."""
        maps = self.backbone(images)
        # torch.fx refuses list(maps).
        return [maps[index] for index in range(len(self.backbone.out_indices))]


class TimmFeatureDict(TimmFeatures):
    """`TimmFeatures` for `feature_cls='dict'`: the maps are named by the index of their stage."""

    def forward(self, images: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Images [B, in_chans, H, W] -> stage '0', '1' … to map [B, C_i, h_i, w_i]."""
        maps = self.backbone(images)
        return {str(stage): x for stage, x in zip(self.backbone.out_indices, maps, strict=True)}


def default_maps(backbone: type[Backbone], arch: Any) -> int:
    """Return how many of the last stages are returned: all; without a pyramid three, as in timm."""
    stages = backbone.stage_count(arch)
    if backbone.block_stride is not None:
        return min(3, stages)
    return stages


def _backbone_arguments(
    arguments: dict[str, Any], in_chans: int, img_size: int | tuple[int, int] | None
) -> dict[str, Any]:
    """Return a backbone's arguments with timm's names translated."""
    translated = dict(arguments)
    translated['in_channels'] = in_chans
    if img_size is not None:
        translated['pretrain_img_size'] = img_size
    return translated


def _feature_info(backbone: Backbone) -> list[dict[str, Any]]:
    stages = []
    for stage in range(backbone.num_stages):
        stages.append(
            {
                'num_chs': backbone.embed_dims[stage],
                'reduction': backbone.strides[stage],
                'module': f'backbone.{backbone.stage_module(stage)}',
            }
        )
    return stages


def _check_pool(global_pool: str) -> None:
    if global_pool not in GLOBAL_POOLS:
        raise ValueError(f"global_pool: expected 'avg' or '', got {global_pool!r}")
