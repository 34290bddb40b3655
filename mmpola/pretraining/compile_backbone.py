"""Compile a model's backbone with torch.compile, and leave the rest of the model as it is."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.hooks import Hook
from torch import nn

from mmpola.messages import UsageError
from mmpola.openmmlab.config.build import unwrapped


def compile_backbone(model: nn.Module, backend: str = 'inductor') -> None:
    """Compile the backbone of a model in place, for images of any size.

    Only the backbone is compiled: the steps after it depend on the number of boxes, which differs
    between images, so they would be compiled again and again. Batch, height and width are symbolic:
    one graph serves all image sizes in training and one in evaluation; a batch of one image has
    graphs of its own. The backend may specialise a graph: inductor compiles some sizes anew. After
    torch._dynamo.config.recompile_limit of them, the backbone runs eagerly. The names of
    parameters, and so checkpoints, stay as they are.

    Args:
        model: a model with a `backbone`, or a wrapper (`module`) around one.
        backend: of torch.compile.

    Raises:
        UsageError: the model has no backbone, or torch no such backend.
    """
    if backend not in torch.compiler.list_backends(exclude_tags=()):
        raise UsageError(
            'compile: expected a backend of torch.compile, such as inductor or eager, got '
            f'{backend}'
        )
    inner = unwrapped(model)
    if not hasattr(inner, 'backbone'):
        raise UsageError(f'compile: expected a model with a backbone, got {type(inner).__name__}')
    # Inductor (torch 2.11) cannot order the strides of a map whose size is a symbol: it compiles a
    # graph for each image size, up to torch's limit of eight; others then run uncompiled.
    is_inductor = backend == 'inductor'
    inner.backbone.compile(backend=backend, dynamic=not is_inductor)


class CompileBackboneHook(Hook):
    """Compile the backbone before training or evaluation starts; see `compile_backbone`.

    MMEngine's own `compile` setting compiles a whole training step, and nothing in evaluation.

    Args:
        backend: of torch.compile.
    """

    def __init__(self, backend: str = 'inductor') -> None:
        self.backend = backend

    def before_run(self, runner: Any) -> None:
        """Compile the backbone of the runner's model."""
        compile_backbone(runner.model, self.backend)
