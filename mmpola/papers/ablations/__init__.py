"""PolaDeiT and the attention of Table 3: parts of PolaFormer left out or replaced."""
