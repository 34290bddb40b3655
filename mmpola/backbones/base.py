"""What every backbone shares, once: outputs, output norms, freezing, activation checkpointing and weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mmpola.checkpoint.weights import Loadable, check_init_cfg, load_weights
from mmpola.layers import Grid, PolaAttention

STRIDES = (4, 8, 16, 32)

AttnTypes = Sequence[str]


class Backbone(Loadable):
    """A backbone of stages that returns maps [B, C_i, ceil(H / s_i), ceil(W / s_i)], s = 4, 8, 16, 32 in a pyramid.

    Only the stages up to the last of `out_indices`, and norms of `out_indices`, are built: every parameter gets a
    gradient, as DistributedDataParallel demands. A subclass sets `embed_dims` and yields the token maps of its stages;
    one with other `strides` says so.

    Args:
        embed_dims: channels of each stage.
        in_channels: channels of the input image.
        out_indices: stages to return, from 0, in ascending order.
        out_norm: a LayerNorm per output.
        norm_eps: its epsilon.
        frozen_stages: -1 freezes nothing, 0 the patch embedding, i also the stages 1 ... i with all that bears their
            number (down-sampling, output norm). Frozen parameters need no gradient; frozen modules stay in eval mode.
        norm_eval: keep BatchNorm layers in eval mode while training.
        with_cp: recompute each block's activations in the backward pass to save memory.
        init_cfg: None, or dict(type='Pretrained', checkpoint=PATH), read by `init_weights()`.
    """

    strides: Sequence[int] = STRIDES

    def __init__(
        self,
        embed_dims: Sequence[int],
        *,
        out_norm: bool,
        norm_eps: float,
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        stages = list(range(len(embed_dims)))
        if not out_indices or list(out_indices) != sorted(set(out_indices) & set(stages)):
            raise ValueError(f'out_indices: expected ascending stages out of {stages}, got {tuple(out_indices)}')
        self.out_indices = tuple(out_indices)
        self.num_stages = self.out_indices[-1] + 1
        if frozen_stages not in range(-1, self.num_stages + 1):
            raise ValueError(f'frozen_stages: expected -1 ... {self.num_stages}, got {frozen_stages}')
        check_init_cfg(init_cfg)
        self.in_channels, self.embed_dims = in_channels, tuple(embed_dims)
        self.frozen_stages, self.norm_eval, self.with_cp, self.init_cfg = frozen_stages, norm_eval, with_cp, init_cfg
        for index in self.out_indices if out_norm else ():
            self.add_module(f'norm{index}', nn.LayerNorm(embed_dims[index], eps=norm_eps))

    def stage_maps(self, x: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        """Yield each built stage's tokens [B, N, C] and their grid (h, w)."""
        raise NotImplementedError

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        """What `frozen_stages` freezes for number `stage`: 0 the patch embedding, i stage i without its output norm."""
        raise NotImplementedError

    def output_norm(self, index: int) -> nn.Module | None:
        """The LayerNorm of output `index`, if there is one."""
        return getattr(self, f'norm{index}', None)

    def own_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        prefix = 'backbone.'
        inside = {key.removeprefix(prefix): x for key, x in weights.items() if key.startswith(prefix)}
        return inside or weights

    def unbuilt_prefixes(self) -> tuple[str, ...]:
        last, stages = self.num_stages - 1, len(self.embed_dims)
        return (f'layers.{last}.downsample.', *(f'layers.{stage}.' for stage in range(self.num_stages, stages)))

    def fresh_prefixes(self) -> tuple[str, ...]:
        return tuple(f'norm{index}.' for index in self.out_indices)

    def position_tables(self) -> dict[str, Grid]:
        return {
            f'{name}.positional_encoding': module.grid
            for name, module in self.named_modules()
            if isinstance(module, PolaAttention)
        }

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images [B, in_channels, H, W] of any size -> one map [B, C_i, h_i, w_i] per entry of `out_indices`.

        Raises:
            ValueError: x is not [B, in_channels, H, W].
        """
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(f'x: expected images [B, {self.in_channels}, H, W], got {list(x.shape)}')
        outputs = []
        for index, (tokens, grid) in enumerate(self.stage_maps(x)):
            if index in self.out_indices:
                norm = self.output_norm(index)
                normed = tokens if norm is None else norm(tokens)
                outputs.append(normed.transpose(1, 2).unflatten(2, grid).contiguous())
        return tuple(outputs)

    def init_weights(self) -> None:
        """Load the file of `init_cfg`; without one the weights stay as the constructor drew them."""
        if self.init_cfg is not None:
            load_weights(self, self.init_cfg['checkpoint'])

    def train(self, mode: bool = True) -> Backbone:
        """Training mode, except for frozen stages and, with `norm_eval`, BatchNorm layers."""
        super().train(mode)
        for part in self._frozen_parts():
            if isinstance(part, nn.Module):
                part.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def _finish(self) -> None:
        """Draw the weights and freeze; the last line of a subclass's constructor."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for part in self._frozen_parts():
            part.requires_grad_(False)
        self.train()

    def _frozen_parts(self) -> list[nn.Module | nn.Parameter]:
        parts = [part for stage in range(self.frozen_stages + 1) for part in self.stage_modules(stage)]
        norms = (self.output_norm(index) for index in range(self.frozen_stages))
        return parts + [norm for norm in norms if norm is not None]


def run_block(block: nn.Module, with_cp: bool, x: Tensor, *args: Any) -> Tensor:
    """block(x, *args); with `with_cp` its activations are recomputed in the backward pass."""
    if with_cp and torch.is_grad_enabled():
        return checkpoint(block, x, *args, use_reentrant=False)
    return block(x, *args)


def stage_grids(image_size: int | tuple[int, int]) -> list[Grid]:
    """Token grids (h, w) of the four stages for an image of that side, or of (height, width), in pixels."""
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return [(-(-height // stride), -(-width // stride)) for stride in STRIDES]


def drop_path_rates(last: float, depths: Sequence[int]) -> Iterator[float]:
    """Stochastic depth of every block, rising linearly from 0 to `last` over the whole network."""
    blocks = sum(depths)
    return (last * block / max(1, blocks - 1) for block in range(blocks))


def block_types(attn_types: AttnTypes, depths: Sequence[int], known: str = 'LS') -> list[str]:
    """A letter per block: 'L' linear, 'S' softmax. An entry is one letter for its whole stage or one letter per block.

    Raises:
        ValueError: the entries do not match the stages or the blocks, or a letter is unknown.
    """
    if len(attn_types) != len(depths):
        raise ValueError(f'attn_types: expected {len(depths)} entries, one per stage, got {attn_types!r}')
    types = []
    for entry, depth in zip(attn_types, depths, strict=True):
        letters = entry * depth if len(entry) == 1 else entry
        if len(letters) != depth or set(letters) - set(known):
            raise ValueError(
                f'attn_types: expected one letter of {known!r} or a string of {depth} of them per stage, got {entry!r}'
            )
        types.append(letters)
    return types


def check_ratios(name: str, ratios: Sequence[int]) -> None:
    """Raise ValueError unless `ratios`, the argument of that name, are four strides."""
    if len(ratios) != len(STRIDES) or any(not isinstance(ratio, int) or ratio < 1 for ratio in ratios):
        raise ValueError(f'{name}: expected four integers from 1, one per stage, got {ratios!r}')


def check_heads(embed_dims: Sequence[int], num_heads: Sequence[int]) -> None:
    """Raise ValueError unless every stage's channels divide into heads of an even dimension."""
    for dim, heads in zip(embed_dims, num_heads, strict=True):
        if dim % heads:
            raise ValueError(f'embed_dims: expected multiples of num_heads, got {dim} channels and {heads} heads')
        if dim // heads % 2:
            raise ValueError(
                f'num_heads: expected an even head dimension (values split into two streams), '
                f'got {dim} // {heads} = {dim // heads}'
            )


def resolve_arch(arch: str | dict[str, Any], known: dict[str, dict[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
    """The settings of a named `arch`, or a dict with exactly `keys`.

    Raises:
        ValueError: the name is unknown or the keys differ.
    """
    if isinstance(arch, str):
        if arch not in known:
            raise ValueError(f'arch: expected one of {list(known)} or a dict, got {arch!r}')
        return known[arch]
    if set(arch) != set(keys):
        raise ValueError(f'arch: expected a dict with the keys {list(keys)}, got {list(arch)}')
    return dict(arch)
