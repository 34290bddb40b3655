"""Sequence classifier, PolaFormer (alpha = 3), generated ListOps, 1,500 steps.

A first try without the official files, on short expressions of at most four levels, with closing
brackets: four minutes of one CPU core. It shows that everything runs, and nothing about attention:
after so few steps the network has learned little more than the first token. The most frequent
label for the first operator, a table of four entries, scores 37.0 on the same test split. A
logistic regression reaches 41.6 on the first operator and the counts of all tokens, and 54.2 if it
also sees, for each first operator, which arguments stand directly in the outermost list.

    python -m mmpola.papers.lra.listops data/lra/listops-small --train 20000 --dev 1000 --test 1000 \
        --min-length 20 --max-length 200 --max-depth 4
    python tools/train.py configs/lra_listops_small.py

All other settings are those of lra_listops_pola_a3.py, batch 32 among them.

Ours: 37.2 to 40.1 (three seeds); a table of four entries scores 37.0.
"""

_base_ = './lra_listops_pola_a3.py'

data_root = 'data/lra/listops-small'
lr = 1e-3
warmup = 150
steps = 1500

model = dict(backbone=dict(length=256))
train_dataloader = dict(num_workers=1, dataset=dict(root=data_root, brackets=True))
val_dataloader = dict(num_workers=1, dataset=dict(root=data_root, brackets=True))
test_dataloader = dict(num_workers=1, dataset=dict(root=data_root, brackets=True))

optim_wrapper = dict(optimizer=dict(lr=lr))
param_scheduler = _base_.param_scheduler
for scheduler, (begin, end) in zip(
    param_scheduler, [(0, warmup), (warmup - 1, steps)] * 2, strict=True
):
    scheduler.update(begin=begin, end=end)
param_scheduler[1].eta_min = lr / 25e4
del scheduler, begin, end
train_cfg = dict(max_iters=steps, val_begin=1, val_interval=500)
