"""AdamW without decay on the parameters of `no_decay.py`.

The schedule files set the learning rate and the weight decay of all other parameters.
"""

_base_ = ['./no_decay.py']

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', betas=(0.9, 0.999)),
    paramwise_cfg=_base_.no_decay,
)
