"""What every backbone shares: outputs and their norms, initial weights, freezing, recomputed activations, loading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, final

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mmpola.backbones.arch import STRIDES
from mmpola.checkpoint.weights import Loadable, check_init_cfg, load_weights
from mmpola.layers import Grid, PowerAttention


class Backbone(Loadable):
    """A network of stages that returns one map [B, C_i, ceil(H / s_i), ceil(W / s_i)] per entry of `out_indices`.

    A subclass builds its parts as local variables and hands all of them to this constructor, which registers them,
    draws the weights of their linear layers (truncated normal of deviation 0.02, biases 0) and freezes those of
    `frozen_stages`. In `stage_maps` it runs them. It builds no stage after the last of `out_indices`, because
    DistributedDataParallel needs a gradient for every parameter.

    Args:
        parts: the modules and parameters of the backbone without its output norms, by name, in the order of the
            released weights.
        stage_parts: names of the parts (dotted if nested, as `layers.0`) in the order in which they are frozen: first
            those of the patch embedding, then those of each stage. All parameters must be among them.
        embed_dims: channels of each stage, also of those that are not built.
        strides: pixels per token of each stage.
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
        ValueError: `frozen_stages` or `init_cfg` breaks its rule; the message names it.
    """

    def __init__(
        self,
        parts: dict[str, nn.Module | nn.Parameter],
        stage_parts: Sequence[Sequence[str]],
        *,
        embed_dims: Sequence[int],
        strides: Sequence[int] = STRIDES,
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
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(f'x: expected images [B, {self.in_channels}, H, W], got {list(x.shape)}')
        outputs = []
        for index, (tokens, grid) in enumerate(self.stage_maps(x)):
            if index in self.out_indices:
                normed = getattr(self, f'norm{index}')(tokens) if self.out_norm else tokens
                outputs.append(normed.transpose(1, 2).unflatten(2, grid).contiguous())
        return tuple(outputs)

    def init_weights(self) -> None:
        """Load the file of `init_cfg`; without one the weights stay as the constructor drew them."""
        if self.init_cfg is not None:
            load_weights(self, self.init_cfg['checkpoint'])

    def train(self, mode: bool = True) -> Backbone:
        """Set training mode, except for frozen stages and, with `norm_eval`, BatchNorm layers."""
        super().train(mode)
        self._set_eval_where_frozen()
        return self

    def own_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors under `backbone.` without that prefix, or all of them where none has it."""
        prefix = 'backbone.'
        inside = {key.removeprefix(prefix): x for key, x in weights.items() if key.startswith(prefix)}
        return inside or weights

    def unbuilt_prefixes(self) -> tuple[str, ...]:
        """Return the names, in a full checkpoint, of stages `layers.i` and of the down-sampling that are not built."""
        last, stages = self.num_stages - 1, len(self.embed_dims)
        return (f'layers.{last}.downsample.', *(f'layers.{stage}.' for stage in range(self.num_stages, stages)))

    def fresh_prefixes(self) -> tuple[str, ...]:
        """Return the names of the output norms, which a pretrained file may lack."""
        return tuple(f'norm{index}.' for index in self.out_indices) if self.out_norm else ()

    def position_tables(self) -> dict[str, Grid]:
        """Return the training grid of each learned position table by parameter name."""
        return {
            f'{name}.positional_encoding': module.grid
            for name, module in self.named_modules()
            if isinstance(module, PowerAttention)
        }

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


def run_block(block: nn.Module, with_cp: bool, x: Tensor, *args: Any) -> Tensor:
    """Return block(x, *args); if `with_cp`, its activations are recomputed in the backward pass."""
    if with_cp and torch.is_grad_enabled():
        return checkpoint(block, x, *args, use_reentrant=False)
    return block(x, *args)
