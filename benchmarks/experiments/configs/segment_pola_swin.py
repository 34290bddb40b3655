"""E2: Pola-Swin."""

_base_ = './segment.py'
