"""E4: softmax attention over all tokens of each stage."""

_base_ = './classify.py'

model = dict(
    backbone=dict(type='mmpola.PolaPVT', attn_types='SSSS', softmax_sr_ratios=(1, 1, 1, 1))
)
