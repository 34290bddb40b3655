"""Backbones, registered in scope 'mmpola'."""

from mmpola.backbones.pola_swin import PolaSwin

__all__ = ['PolaSwin']
