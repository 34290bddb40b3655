"""Sample maps at float32 coordinates while the rest of the model computes in bfloat16."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from torch import Tensor, nn


class Float32SamplingHook(Hook):
    """Let mmdet's region extractors and deformable attention read float32 maps.

    Both convert coordinates to the dtype of the maps. bfloat16 has 8 significant bits: it rounds
    the corners of regions to multiples of 4 pixels from 512 on, and of 8 from 1,024 on. float16
    rounds them to halves and whole pixels, and is left as it is.

    `--amp bfloat16` adds this hook.
    """

    def before_run(self, runner: Any) -> None:
        """Convert the maps on their way into such modules."""
        for module in runner.model.modules():
            if hasattr(module, 'roi_layers'):
                module.register_forward_pre_hook(_convert_maps)
            if hasattr(module, 'sampling_offsets') and hasattr(module, 'value_proj'):
                module.value_proj.register_forward_hook(_convert_output)


def _convert_maps(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert the first input of a region extractor, its maps [B, C, H, W]."""
    maps = [single.float() for single in inputs[0]]
    return (maps, *inputs[1:])


def _convert_output(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    """Convert the values [B, N, C] from which deformable attention samples."""
    return output.float()
