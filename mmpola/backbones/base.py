"""What all backbones share: a stage, and the class that runs, freezes and loads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mmpola.backbones.arguments import STRIDES, check_out_indices, token_grid
from mmpola.backbones.parameter_groups import BackboneLayers
from mmpola.backbones.weight_names import ReleasedNames, to_ours
from mmpola.checkpoint.init_cfg import InitCfg, check_init_cfg, initialize
from mmpola.checkpoint.load import RenamesWeights
from mmpola.layers import Grid, HasPositionTable, draw_table, resize_table

FIRST_CONV = 'stem.proj'
"""Name of the convolution that reads the image."""


class HeadSpec(NamedTuple):
    """The layers between a backbone's last map and the average over its tokens."""

    out_norm: bool = False  # the backbone's own output norm
    norm_eps: float | None = None  # epsilon of a LayerNorm; None for no LayerNorm
    projection: bool = False  # 1x1 convolution, BatchNorm and SiLU


class Stage(HasPositionTable):
    """The blocks at one resolution, after the down-sampling to it and its position table.

    Args:
        blocks: modules with attention `attn`, called as block(x, layout), where `block_layouts`
            makes the layout.
        downsample: module that turns a map [B, C', h', w'] into a map [B, h, w, C]; None after the
            stem.
        grid: token grid (h, w) of the training images.
        table: channels C of a learned position table that is added to the tokens; None for no
            table.
        drop: dropout rate on the tokens that the blocks read.
    """

    table_name = 'pos_embed'

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        downsample: nn.Module | None,
        grid: Grid,
        *,
        table: int | None = None,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.downsample = downsample
        self.pos_embed = None
        if table is not None:
            self.pos_embed = nn.Parameter(torch.empty(1, grid[0] * grid[1], table))
        self.drop = nn.Dropout(drop)
        self.blocks = nn.ModuleList(blocks)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the position table as PVT does; the other modules have drawn their own weights."""
        if self.pos_embed is not None:
            draw_table(self.pos_embed)

    def forward(self, x: Tensor, with_cp: bool = False) -> Tensor:
        """Run the stage.

        Args:
            x: map [B, h', w', C'] of the previous stage, or of the stem.
            with_cp: recompute each block's activations in the backward pass.

        Returns:
            The stage's map [B, h, w, C].
        """
        if self.downsample is not None:
            x = self.downsample(x.permute(0, 3, 1, 2))
        grid = (x.shape[1], x.shape[2])
        x = x.flatten(1, 2)
        if self.pos_embed is not None:
            x = x + resize_table(self.pos_embed, self.grid, grid)
        x = self.drop(x)
        layouts = self.block_layouts(x, grid)
        for block, layout in zip(self.blocks, layouts, strict=True):
            if with_cp and torch.is_grad_enabled():
                x = checkpoint(block, x, layout, use_reentrant=False)
            else:
                x = block(x, layout)
        return x.unflatten(1, grid)

    def block_layouts(self, x: Tensor, grid: Grid) -> list[Any]:
        """Return the second argument of each block: the tokens' grid, or their windows."""
        return [grid] * len(self.blocks)


class Backbone(RenamesWeights):
    """A network of stages that returns one map [B, C_i, ceil(H / s_i), ceil(W / s_i)] per output.

    The constructor of a subclass calls this one, builds `stem`, then `stages` up to the last of
    `out_indices` (DistributedDataParallel needs a gradient for every parameter), and ends with
    `add_output_norms` and `freeze_stages`. Every module draws its initial weights in its own
    `reset_parameters`. Parameters have the same names in all families: `stem`,
    `stages.I.downsample`, `stages.I.pos_embed`, `stages.I.blocks.J`, `norms.I`, with I and J from
    0. `load_state_dict` takes the names of the released files too.

    Args:
        embed_dims: channels of each stage, including those that are not built.
        strides: pixels per token of each stage.
        in_channels: channels of the input image.
        out_indices: stages to return, from 0, in ascending order.
        out_norm: whether to apply a LayerNorm to each output.
        frozen_stages: -1 freezes nothing, 0 the stem, i also the stages 1 ... i with the
            down-sampling, the position table and the output norm of each. Frozen parameters need no
            gradient; frozen modules stay in eval mode.
        norm_eval: keep BatchNorm layers in eval mode while training.
        with_cp: recompute each block's activations in the backward pass to save memory.
        init_cfg: None, dict(type='Pretrained', checkpoint=PATH), an initializer of MMEngine such as
            dict(type='TruncNormal', layer='Linear', std=0.02), or a list of them; read by
            `init_weights()`.

    Attributes:
        stem: module that turns images [B, in_channels, H, W] into a map [B, h, w, C].
        stages: the stages that are built.
        norms: the LayerNorms of the outputs by the number of their stage.

    Raises:
        ValueError: `out_indices`, `frozen_stages` or `init_cfg` is invalid; the message names it.
    """

    released_names: ClassVar[ReleasedNames] = ReleasedNames()
    """How the family's released files name the parameters; by default as this backbone does."""

    head: ClassVar[HeadSpec] = HeadSpec()
    """The head of the classifier that the family was published with."""

    block_stride: ClassVar[int | None] = None
    """Pixels per token of a family without a pyramid, in which each block is a stage."""

    chained_norms: ClassVar[bool] = False
    """Whether the next stage reads the normalised tokens of a stage; files must then have norms."""

    stem: nn.Module
    stages: nn.ModuleList
    norms: nn.ModuleDict

    def __init__(
        self,
        *,
        embed_dims: Sequence[int],
        strides: Sequence[int] = STRIDES,
        in_channels: int,
        out_indices: Sequence[int],
        out_norm: bool,
        frozen_stages: int,
        norm_eval: bool,
        with_cp: bool,
        init_cfg: InitCfg,
    ) -> None:
        super().__init__()
        check_out_indices(out_indices, len(embed_dims))
        built = out_indices[-1] + 1
        if frozen_stages not in range(-1, built + 1):
            raise ValueError(f'frozen_stages: expected -1 ... {built}, got {frozen_stages}')
        check_init_cfg(init_cfg)
        self.embed_dims = tuple(embed_dims)
        self.strides = tuple(strides)
        self.in_channels = in_channels
        self.out_indices = tuple(out_indices)
        self.out_norm = out_norm
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.with_cp = with_cp
        self.init_cfg = init_cfg

    @final
    def add_output_norms(self, eps: float) -> None:
        """Build `norms`, with this epsilon, for the stages that are built."""
        self.norms = nn.ModuleDict()
        for index in self._norms_in_use():
            self.norms[index] = nn.LayerNorm(self.embed_dims[int(index)], eps=eps)

    @final
    def freeze_stages(self) -> None:
        """Freeze the stem and the stages that `frozen_stages` asks for."""
        for part in self._frozen_parts():
            part.requires_grad_(False)
        self._set_eval_where_frozen()

    @property
    def num_stages(self) -> int:
        """Number of stages that are built."""
        return len(self.stages)

    @classmethod
    def stage_count(cls, arch: str | dict[str, Any]) -> int:
        """Return how many stages an `arch` has, also those that `out_indices` does not select."""
        return len(STRIDES)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images [B, in_channels, H, W] of any size -> a map [B, C_i, h_i, w_i] per output.

        Raises:
            ValueError: x is not [B, in_channels, H, W].
        """
        tracer: Any = getattr(x, 'tracer', None)
        if isinstance(x, torch.fx.Proxy) and tracer.root is not self:
            # torch.fx cannot record operations that depend on the image size (padding, masks,
            # tables): the backbone becomes one node.
            return tracer.create_proxy('call_module', tracer.path_of_module(self), (x,), {})
        outputs = []
        for index, (tokens, grid) in enumerate(self.stage_maps(x)):
            if index not in self.out_indices:
                continue
            if self.out_norm and not self.chained_norms:
                tokens = self.norms[str(index)](tokens)
            maps = tokens.transpose(1, 2).unflatten(2, grid)
            outputs.append(maps.contiguous())
        return tuple(outputs)

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        """Yield tokens [B, N, C] and grid (h, w) of each stage of images [B, in_channels, H, W].

        They are normalised only with both `chained_norms` and `out_norm`; without `chained_norms`,
        `forward` applies the output norms.
        """
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f'x: expected images [B, {self.in_channels}, H, W], got {list(x.shape)}'
            )
        x = self.stem(x)
        for index, stage in enumerate(self.stages):
            x = stage(x, self.with_cp)
            grid = (x.shape[1], x.shape[2])
            tokens = x.flatten(1, 2)
            if not self.chained_norms or str(index) not in self.norms:
                yield tokens, grid
                continue
            normed = self.norms[str(index)](tokens)
            if self.out_norm:
                yield normed, grid
            else:
                yield tokens, grid
            x = normed.unflatten(1, grid)

    def stage_module(self, stage: int) -> str:
        """Return the name of the module whose output is the tokens [B, N, C] of a built stage."""
        if self.chained_norms and self.out_norm:
            return f'norms.{stage}'
        blocks: Any = self.get_submodule(f'stages.{stage}.blocks')
        return f'stages.{stage}.blocks.{len(blocks) - 1}'

    def prune_stages(self, number: int) -> None:
        """Remove the stages after the first `number`, as if they had not been built.

        If none of `out_indices` is left, the last remaining stage is returned, without an optional
        output norm.
        """
        del self.stages[number:]
        kept = tuple(index for index in self.out_indices if index < number)
        if kept:
            self.out_indices = kept
        else:
            self.out_indices = (number - 1,)
            self.out_norm = self.out_norm and self.chained_norms
        for index in set(self.norms) - set(self._norms_in_use()):
            del self.norms[index]

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Resize all position tables to the token grids of another image size, as if trained on it.

        A forward pass interpolates tables that do not fit the image, so this changes no output at
        `img_size`. It saves the interpolation and makes the tables of the new size trainable.
        Tables that change are new parameters: call it before the optimizer is created. Windows keep
        their size.

        Args:
            img_size: side of the images in pixels, or (height, width).
        """
        for _, module, tokens in self._modules_with_table(img_size):
            module.set_token_grid(tokens)

    def table_grids(self, img_size: int | tuple[int, int]) -> dict[str, Grid]:
        """Return the grids that position tables have at an image size, by their names.

        Args:
            img_size: side of the images in pixels, or (height, width).
        """
        grids = {}
        for name, module, tokens in self._modules_with_table(img_size):
            if getattr(module, module.table_name) is not None:
                key = f'{name}.{module.table_name}'
                grids[key] = module.table_grid(tokens)
        return grids

    def init_weights(self) -> None:
        """Run the initializers of `init_cfg` and load its file; other weights stay as they are.

        But gates start again as `gate_init` says before a file is loaded, as the initializers of a
        detector may have drawn them anew: load weights after this, not before.
        """
        initialize(self, self.init_cfg)

    def train(self, mode: bool = True) -> Backbone:
        """Set training mode, except for frozen stages and, with `norm_eval`, BatchNorm layers."""
        super().train(mode)
        self._set_eval_where_frozen()
        return self

    def rename_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Rename released names, with or without `backbone.`, to this backbone's; others stay."""
        without_prefix = {name.removeprefix('backbone.'): x for name, x in weights.items()}
        return to_ours(without_prefix, self.released_names)

    def optional_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of tensors that a pretrained file may lack: the output norms."""
        if self.chained_norms:
            return ()
        return ('norms.',)

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Return a parameter's layer and the number of layers, for mmpretrain's layer-wise decay.

        Layer 0 is the stem, then every block is a layer (see `BackboneLayers`); the last layer has
        the output norms and everything outside the backbone.

        Args:
            param_name: name of the parameter in the whole model.
            prefix: beginning of the names of the backbone's parameters there, such as 'backbone.'.

        Raises:
            ValueError: the name begins with `prefix` but is no name of a backbone.
        """
        names = [name for name, _ in self.named_parameters()]
        layers = BackboneLayers(names, self.optional_prefixes())
        last = layers.number + 1
        if not param_name.startswith(prefix):
            return last, last + 1
        return layers.layer_of(param_name.removeprefix(prefix)), last + 1

    @final
    def _modules_with_table(
        self, img_size: int | tuple[int, int]
    ) -> Iterator[tuple[str, HasPositionTable, Grid]]:
        """Yield (name, module, grid of its tokens at an image size) of modules with a table."""
        parts: list[tuple[str, nn.Module, int]] = [('stem', self.stem, self.strides[0])]
        for index, stage in enumerate(self.stages):
            parts.append((f'stages.{index}', stage, self.strides[index]))
        for part_name, part, stride in parts:
            tokens = token_grid(img_size, stride)
            for name, module in part.named_modules():
                if isinstance(module, HasPositionTable):
                    yield f'{part_name}.{name}'.removesuffix('.'), module, tokens

    @final
    def _norms_in_use(self) -> list[str]:
        """Return the keys of `norms`.

        A stage has a norm if it is an output and `out_norm` is set, or if the next stage reads the
        norm (`chained_norms`).
        """
        used: set[int] = set()
        if self.out_norm:
            used.update(self.out_indices)
        if self.chained_norms:
            used.update(range(len(self.stages) - 1))
        return [str(index) for index in sorted(used)]

    @final
    def _frozen_parts(self) -> list[nn.Module]:
        if self.frozen_stages < 0:
            return []
        parts: list[nn.Module] = [self.stem]
        parts.extend(self.stages[: self.frozen_stages])
        for index, norm in self.norms.items():
            if int(index) < self.frozen_stages:
                parts.append(norm)
        return parts

    @final
    def _set_eval_where_frozen(self) -> None:
        for part in self._frozen_parts():
            part.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
