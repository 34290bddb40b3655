"""E2: Pola-Swin."""

_base_ = './segment_random.py'
