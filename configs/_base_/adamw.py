"""AdamW without weight decay on norms, biases, position tables and attention's own parameters.

Layer scales have none either. The schedule files set the learning rate and the weight decay of all
other parameters.
"""

optim_wrapper = dict(
    type='OptimWrapper',
    constructor='mmpola.NoDecayOptimizerConstructor',
    optimizer=dict(type='AdamW', betas=(0.9, 0.999)),
)
