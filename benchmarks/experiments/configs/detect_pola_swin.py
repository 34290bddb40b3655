"""E1: Pola-Swin."""

_base_ = './detect_random.py'
