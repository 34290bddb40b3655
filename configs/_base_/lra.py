"""The Long Range Arena: optimizer, loops and hooks of all tasks.

A task's own base adds model, data and rates.

Settings are PolaFormer's where it states them, else those of Skyformer's implementation, which it
follows: AdamW without weight decay, gradients clipped by value, and one cycle of 50,000 steps, in
which the learning rate rises linearly from a 25th and falls to a 250,000th, while Adam's first beta
falls from 0.95 to 0.85 and rises again. With another train_cfg.max_iters the cycle stays that of
50,000 steps, and tools/train.py names the options that change it.

After a fifth of the steps, the whole dev split is evaluated every `val_interval` steps. The
checkpoint with the best accuracy is kept, and is evaluated once on the test split when training
ends. A run of at most 10,000 steps needs train_cfg.val_begin=1 to be evaluated.
"""

_base_ = ['./runtime.py']

steps = 50_000

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.95, 0.999), eps=1e-6, weight_decay=0.0),
    clip_grad=dict(type='value', clip_value=1.0),
)

train_dataloader = dict(
    num_workers=2,
    persistent_workers=True,
    drop_last=True,
    collate_fn=dict(type='mmpola.sequence_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(split='train'),
)
val_dataloader = dict(
    num_workers=2,
    persistent_workers=True,
    collate_fn=dict(type='mmpola.sequence_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(split='dev'),
)
test_dataloader = dict(
    num_workers=2,
    collate_fn=dict(type='mmpola.sequence_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(split='test'),
)
val_evaluator = dict(type='mmpola.Accuracy', topk=(1,))
test_evaluator = val_evaluator

train_cfg = dict(
    type='mmpola.ExactIterLoop', max_iters=steps, val_begin=steps // 5 + 1, val_interval=500
)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=1000, max_keep_ckpts=1),
    final_test=dict(type='mmpola.FinalTestHook'),
)
log_processor = dict(by_epoch=False)
