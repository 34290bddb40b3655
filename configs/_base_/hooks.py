"""The hooks of all training runs: atomic checkpoints, saving on a signal, a stop at NaN.

`buffers` averages the statistics of BatchNorm over the processes, `checks` asks what can be known only when
the run is built.

A config sets `default_hooks` from `_base_.training_hooks`: MMEngine refuses two bases that both set
`default_hooks`, and those of mmdet do. `custom_imports` lets mmdet's own tools/train.py run the
config with mmcv-lite; a config that sets it too names mmpola in its list.
"""

custom_imports = dict(imports=['mmpola'])

training_hooks = dict(
    checkpoint=dict(type='mmpola.AtomicCheckpointHook'),
    preemption=dict(type='mmpola.PreemptionHook'),
    finite_loss=dict(type='mmpola.FiniteLossHook'),
    buffers=dict(type='mmpola.MeanBuffersHook'),
    checks=dict(type='mmpola.ChecksHook'),
)
