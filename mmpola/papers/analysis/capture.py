"""Run a model on one image and hand the inputs of each linear attention layer to a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mmpola.layers import Grid, LinearAttention, covering_grid
from mmpola.messages import UsageError
from mmpola.ops.api import record_inputs
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.papers.ablations.attention import AblatedPolaAttention

Result = TypeVar('Result')


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """The inputs of a linear attention layer in a forward pass on one image.

    Attributes:
        name: of the layer in the model.
        attention: inputs of `polarity_attention`; B = 1.
        mixing: inputs of `mix_and_gate`, with the output of `polarity_attention` as `attended`.
        grid: (h, w) of the queries.
        sr_ratio: queries per key along each side; 1 unless the layer reduces its keys.
    """

    name: str
    attention: AttentionInputs
    mixing: MixAndGateInputs
    grid: Grid
    sr_ratio: int

    @property
    def key_grid(self) -> Grid:
        """(h, w) of the keys."""
        return covering_grid(self.grid, self.sr_ratio)


def linear_layers(model: nn.Module) -> dict[str, LinearAttention]:
    """Return the linear attention layers of a model by name, in the order of their definition.

    Ablated layers (`AblatedPolaAttention`) are left out.

    Raises:
        UsageError: the model has none.
    """
    layers = {}
    without = 'without any'
    for name, module in model.named_modules():
        if isinstance(module, LinearAttention):
            layers[name] = module
        if isinstance(module, AblatedPolaAttention):
            without = 'without any, only ablated ones'
    if not layers:
        raise UsageError(
            'model: expected linear attention layers of mmpola, '
            f'got {type(model).__name__} {without}'
        )
    return layers


def choose_layers(model: nn.Module, names: Sequence[str] | None) -> list[str]:
    """Return the names of the linear attention layers to analyze, each once; None: all of them.

    Raises:
        UsageError: the model has no linear attention, or a name is not one of its layers.
    """
    known = list(linear_layers(model))
    if names is None:
        return known
    for name in names:
        if name not in known:
            every = ', '.join(known)
            raise UsageError(f'--layers: expected layers among {every}, got {name}')
    return list(dict.fromkeys(names))


def observe(
    model: nn.Module,
    images: Tensor,
    inspect: Callable[[LayerInputs], Result],
    names: Sequence[str] | None = None,
) -> dict[str, Result]:
    """Run a model on one image and return, by layer, what `inspect` makes of each layer's inputs.

    The model runs in eval mode and without gradients. `inspect` is called meanwhile, so that the
    inputs of one layer exist at a time, unless it keeps them.

    Args:
        model: called with the images; a backbone, or any other module with linear attention layers.
        images: [1, 3, H, W], as the model reads them.
        inspect: called once per layer.
        names: of the layers; None for all.

    Raises:
        UsageError: see `choose_layers`.
        ValueError: `images` is not one image.
    """
    if images.ndim != 4 or images.shape[0] != 1:
        raise ValueError(f'images: expected one image [1, C, H, W], got {list(images.shape)}')
    layers = linear_layers(model)
    chosen = {name: layers[name] for name in choose_layers(model, names)}
    waiting: dict[str, AttentionInputs] = {}
    results: dict[str, Result] = {}

    running: list[str] = []  # the chosen layer that is running, if any

    def enter(name: str, layer: nn.Module, arguments: Any) -> None:
        running.append(name)

    def leave(layer: nn.Module, arguments: Any, output: Tensor) -> None:
        running.clear()

    def receive(inputs: AttentionInputs | MixAndGateInputs) -> None:
        if not running:
            return
        (name,) = running
        inputs = _detached(inputs)
        if isinstance(inputs, AttentionInputs):
            waiting[name] = inputs
            return
        rows, columns = inputs.grid
        sr_ratio = getattr(chosen[name], 'sr_ratio', 1)
        captured = LayerInputs(name, waiting.pop(name), inputs, (rows, columns), sr_ratio)
        results[name] = inspect(captured)

    hooks = []
    for name, layer in chosen.items():
        hooks.append(layer.register_forward_pre_hook(partial(enter, name)))
        hooks.append(layer.register_forward_hook(leave))
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), record_inputs(receive):
            model(images)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return results


def _detached(inputs: Any) -> Any:
    """Return inputs without gradients: some of them are the layer's parameters."""
    tensors = {}
    for name, value in vars(inputs).items():
        if isinstance(value, Tensor):
            tensors[name] = value.detach()
    return replace(inputs, **tensors)
