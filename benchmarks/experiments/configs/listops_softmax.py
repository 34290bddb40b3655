"""E3: softmax attention."""

_base_ = './listops.py'

model = dict(backbone=dict(attention='softmax'))
