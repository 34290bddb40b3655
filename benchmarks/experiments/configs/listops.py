"""E3: the sequence classifier on short generated ListOps; the leaves set the attention.

Data, schedule and sizes are those of configs/lra_listops_small.py. Softmax has no dropout of its
weights here, because no other variant has any.
"""

_base_ = '../../../configs/lra_listops_small.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmpola.SequenceEncoder',
        vocab_size=32,
        length=256,
        mask='padding',
        attention='softmax',
    ),
)

# One process, so that its CPU time is that of the run.
one_process = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(**one_process)
val_dataloader = dict(**one_process)
test_dataloader = dict(num_workers=0)
train_cfg = dict(val_interval=125)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=125))
