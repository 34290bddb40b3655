"""The base class of all backbones: outputs, initial weights, freezing, checkpointing, loading, image sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, ClassVar, final

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mmpola.backbones.arch import STRIDES, token_grid
from mmpola.checkpoint.weights import Loadable, check_init_cfg, load_weights
from mmpola.layers import Grid, PowerAttention, resize_table
from mmpola.layers.padding import cells


class Backbone(Loadable):
    """A network of stages that returns one map [B, C_i, ceil(H / s_i), ceil(W / s_i)] per entry of `out_indices`.

    A subclass builds its parts as local variables and passes them to this constructor, which registers them,
    initialises the weights of their linear layers (truncated normal with standard deviation 0.02, biases 0) and freezes
    those of `frozen_stages`. Its method `stage_maps` runs the parts. It builds no stage after the last of
    `out_indices`, because DistributedDataParallel needs a gradient for every parameter.

    Args:
        parts: the modules and parameters of the backbone without its output norms, by name, in the order of the
            released weights.
        stage_parts: names of the parts (dotted if nested, as `layers.0`) in the order in which they are frozen: first
            those of the patch embedding, then those of each stage. All parameters must be among them.
        embed_dims: channels of each stage, including those that are not built.
        strides: pixels per token of each stage.
        table_grids: token grid (h, w) that each position table [1, h*w, C] among the parts is learned on, by name.
        in_channels: channels of the input image.
        out_indices: stages to return, from 0, in ascending order.
        out_norm: whether to apply a LayerNorm `norm{i}` to output i.
        norm_eps: its epsilon.
        frozen_stages: -1 freezes nothing, 0 the patch embedding, i also the stages 1 ... i with the down-sampling and
            the output norm of each. Frozen parameters need no gradient; frozen modules stay in eval mode.
        norm_eval: keep BatchNorm layers in eval mode while training.
        with_cp: recompute each block's activations in the backward pass to save memory.
        init_cfg: None, or dict(type='Pretrained', checkpoint=PATH), read by `init_weights()`.

    Raises:
        ValueError: `frozen_stages` or `init_cfg` is invalid; the message names it.
    """

    first_conv: ClassVar[str] = 'patch_embed.proj'
    """Name of the convolution that reads the image."""

    def __init__(
        self,
        parts: dict[str, nn.Module | nn.Parameter],
        stage_parts: Sequence[Sequence[str]],
        *,
        embed_dims: Sequence[int],
        strides: Sequence[int] = STRIDES,
        table_grids: dict[str, Grid] | None = None,
        in_channels: int,
        out_indices: Sequence[int],
        out_norm: bool,
        norm_eps: float,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.embed_dims, self.strides = tuple(embed_dims), tuple(strides)
        self.in_channels, self.out_indices, self.out_norm = in_channels, tuple(out_indices), out_norm
        self.num_stages = len(stage_parts) - 1
        self.table_grids = dict(table_grids or {})
        if frozen_stages not in range(-1, self.num_stages + 1):
            raise ValueError(f'frozen_stages: expected -1 ... {self.num_stages}, got {frozen_stages}')
        check_init_cfg(init_cfg)
        self.frozen_stages, self.norm_eval, self.with_cp, self.init_cfg = frozen_stages, norm_eval, with_cp, init_cfg

        self.stage_parts = [list(names) for names in stage_parts]
        for index in self.out_indices if out_norm else ():
            self.add_module(f'norm{index}', nn.LayerNorm(embed_dims[index], eps=norm_eps))
            self.stage_parts[index + 1].append(f'norm{index}')
        for name, part in parts.items():
            setattr(self, name, part)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for part in self._frozen_parts():
            part.requires_grad_(False)
        self._set_eval_where_frozen()

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        """Yield the tokens [B, N, C] of each built stage and their grid (h, w), for images [B, in_channels, H, W]."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images [B, in_channels, H, W] of any size -> one map [B, C_i, h_i, w_i] per entry of `out_indices`.

        Raises:
            ValueError: x is not [B, in_channels, H, W].
        """
        tracer: Any = getattr(x, 'tracer', None)
        if isinstance(x, torch.fx.Proxy) and tracer.root is not self:
            # torch.fx cannot record what depends on the image size (padding, masks, tables): the backbone is one node.
            return tracer.create_proxy('call_module', tracer.path_of_module(self), (x,), {})
        self.check_images(x)
        outputs = []
        for index, (tokens, grid) in enumerate(self.stage_maps(x)):
            if index in self.out_indices:
                normed = getattr(self, f'norm{index}')(tokens) if self.out_norm else tokens
                outputs.append(normed.transpose(1, 2).unflatten(2, grid).contiguous())
        return tuple(outputs)

    def check_images(self, x: Tensor) -> None:
        """Raise ValueError unless x is [B, in_channels, H, W]."""
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(f'x: expected images [B, {self.in_channels}, H, W], got {list(x.shape)}')

    @classmethod
    def stage_count(cls, arch: str | dict[str, Any]) -> int:
        """Return how many stages, from which `out_indices` selects, an `arch` has."""
        return len(STRIDES)

    def stage_module(self, stage: int) -> str:
        """Return the name of the module whose output is the tokens [B, N, C] of a built stage: its last block."""
        blocks: Any = self.get_submodule(f'layers.{stage}.blocks')
        return f'layers.{stage}.blocks.{len(blocks) - 1}'

    def keep_stages(self, number: int) -> None:
        """Remove the stages after the first `number` and the down-sampling to them, as if they had not been built.

        If none of `out_indices` is left, the last remaining stage is returned, without an output norm.
        """
        for names in self.stage_parts[number + 1 :]:
            for name in names:
                parent, _, child = name.rpartition('.')
                delattr(self.get_submodule(parent), child)
                self.table_grids.pop(name, None)
        del self.stage_parts[number + 1 :]
        self.num_stages = number
        kept = tuple(index for index in self.out_indices if index < number)
        self.out_indices, self.out_norm = kept or (number - 1,), self.out_norm and bool(kept)
        layers: Any = getattr(self, 'layers', None)
        if layers is not None:
            layers[-1].downsample = None

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Resize all position tables to the token grids of another image size, as if trained on it.

        A forward pass interpolates the tables wherever the image's grid is another, so this changes no output at
        `img_size`. It saves that interpolation and makes the tables of the new size trainable. Tables that change are
        new parameters: call it before the optimizer is created. Windows keep their size.

        Args:
            img_size: side of the images in pixels, or (height, width).
        """
        for index, names in enumerate(self.stage_parts):
            grid = token_grid(img_size, self.strides[max(index - 1, 0)])  # the first parts are the patch embedding's
            for name in names:
                part = attrgetter(name)(self)
                if name in self.table_grids:
                    setattr(self, name, _resized(part, self.table_grids[name], grid))
                    self.table_grids[name] = grid
                for module in part.modules() if isinstance(part, nn.Module) else ():
                    if isinstance(module, PowerAttention):
                        keys = cells(grid, getattr(module, 'sr_ratio', 1))
                        module.positional_encoding = _resized(module.positional_encoding, module.grid, keys)
                        module.grid = keys

    def init_weights(self) -> None:
        """Load the file of `init_cfg`; without one, keep the weights that the constructor initialised."""
        if self.init_cfg is not None:
            load_weights(self, self.init_cfg['checkpoint'])

    def train(self, mode: bool = True) -> Backbone:
        """Set training mode, except for frozen stages and, with `norm_eval`, BatchNorm layers."""
        super().train(mode)
        self._set_eval_where_frozen()
        return self

    def own_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors under `backbone.` without that prefix, or all tensors if none has it."""
        prefix = 'backbone.'
        inside = {key.removeprefix(prefix): x for key, x in weights.items() if key.startswith(prefix)}
        return inside or weights

    def unbuilt_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes, in a full checkpoint, of stages `layers.i` and down-sampling that are not built."""
        last, stages = self.num_stages - 1, len(self.embed_dims)
        return (f'layers.{last}.downsample.', *(f'layers.{stage}.' for stage in range(self.num_stages, stages)))

    def fresh_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of the output norms, which a pretrained file may lack."""
        return tuple(f'norm{index}.' for index in self.out_indices) if self.out_norm else ()

    def position_tables(self) -> dict[str, Grid]:
        """Return the training grid of each learned position table by parameter name."""
        keys = {
            f'{name}.positional_encoding': module.grid
            for name, module in self.named_modules()
            if isinstance(module, PowerAttention)
        }
        return self.table_grids | keys

    @final
    def _frozen_parts(self) -> list[nn.Module | nn.Parameter]:
        names = [name for numbered in self.stage_parts[: self.frozen_stages + 1] for name in numbered]
        return [attrgetter(name)(self) for name in names]

    @final
    def _set_eval_where_frozen(self) -> None:
        for part in self._frozen_parts():
            if isinstance(part, nn.Module):
                part.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()


def _resized(table: nn.Parameter, source: Grid, target: Grid) -> nn.Parameter:
    """Resize a position table [1, h*w, C] to another grid; return the same parameter if the grids are equal."""
    if source == target:
        return table
    resized = resize_table(table.detach(), source, target).contiguous()
    return nn.Parameter(resized, requires_grad=table.requires_grad)


def run_block(block: nn.Module, with_cp: bool, x: Tensor, *args: Any) -> Tensor:
    """Return block(x, *args); if `with_cp`, its activations are recomputed in the backward pass."""
    if with_cp and torch.is_grad_enabled():
        return checkpoint(block, x, *args, use_reentrant=False)
    return block(x, *args)
