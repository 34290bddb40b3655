"""The transformer encoder of the Long Range Arena: tokens in, one vector per sequence out."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import Mlp
from torch import Tensor, nn

from mmpola.papers.lra.attention import SEQUENCE_ATTENTION, SequenceAttention

PADDING_TOKEN = 0
"""The token that fills a batch's shorter sequences. In pictures it is also the colour black."""

MASKED_TOKENS = ('padding', 'zeros')
"""What `mask` of a `SequenceEncoder` may be."""


class SequenceBlock(nn.Module):
    """A pre-norm transformer block: x += attn(norm1(x)); x += mlp(norm2(x)).

    Linear layers keep PyTorch's initial weights, as in Skyformer.

    Args:
        attn: attention layer, called as attn(x, valid).
        dim: channels C.
        mlp_ratio: hidden channels of the MLP, as a multiple of C.
        drop: dropout rate in the MLP.
    """

    def __init__(self, attn: SequenceAttention, dim: int, mlp_ratio: float, drop: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=drop)

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """x [B, N, C] and a mask [B, N], False for masked tokens, or None -> [B, N, C]."""
        x = x + self.attn(self.norm1(x), valid)
        return x + self.mlp(self.norm2(x))


class SequenceEncoder(nn.Module):
    """Token and position embeddings, pre-norm transformer blocks, and the mean over positions.

    Source: the set-up of Skyformer (NeurIPS 2021), which PolaFormer's experiments follow. In the
    mean over `length` positions, padding counts as zeros, however long a sequence is.

    Args:
        vocab_size: number of tokens, 0 included.
        length: positions, at least the length of the longest sequence.
        attention: 'pola' (PolaFormer), 'polaformer_pp' (PolaFormer++), 'softmax', or
            'linear' (elu + 1).
        dim: channels C.
        depth: number of blocks.
        num_heads: heads of each block.
        mlp_ratio: hidden channels of a block's MLP, as a multiple of C.
        drop: dropout rate of the embeddings, after attention and in the MLPs.
        mask: what is masked: 'padding', or 'zeros', every token 0, as Skyformer does. In pictures,
            'zeros' also masks black pixels, which tells a model where the strokes are.
        attention_arguments: arguments of the variant of `mmpola.layers`, such as `alpha` and
            `gate_init`.

    Raises:
        ValueError: `attention` or `mask` is unknown, or an argument of the attention is out of
            range.
    """

    def __init__(
        self,
        vocab_size: int,
        length: int,
        *,
        attention: str,
        dim: int = 64,
        depth: int = 2,
        num_heads: int = 2,
        mlp_ratio: float = 2.0,
        drop: float = 0.1,
        mask: str = 'padding',
        **attention_arguments: Any,
    ) -> None:
        if attention not in SEQUENCE_ATTENTION:
            raise ValueError(
                f'attention: expected one of {list(SEQUENCE_ATTENTION)}, got {attention!r}'
            )
        if mask not in MASKED_TOKENS:
            raise ValueError(f'mask: expected one of {list(MASKED_TOKENS)}, got {mask!r}')
        super().__init__()
        self.vocab_size = vocab_size
        self.length = length
        self.dim = dim
        self.mask = mask
        self.token = nn.Embedding(vocab_size, dim)
        self.position = nn.Embedding(length, dim)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)
        self.drop = nn.Dropout(drop)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            attn = SEQUENCE_ATTENTION[attention](
                dim, num_heads, length, proj_drop=drop, **attention_arguments
            )
            self.blocks.append(SequenceBlock(attn, dim, mlp_ratio, drop))
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode sequences.

        Args:
            tokens: [B, N], N at most `length`; the result does not depend on how much of the
                padding is included.
            lengths: [B], the tokens of each sequence without padding; None if there is no padding.

        Returns:
            [B, C].
        """
        number = tokens.shape[1]
        valid = None  # [B, N], False for masked tokens
        if self.mask == 'zeros':
            valid = tokens != PADDING_TOKEN
        elif lengths is not None:
            valid = torch.arange(number, device=tokens.device) < lengths[:, None]
        positions = torch.arange(number, device=tokens.device)
        x = self.drop(self.token(tokens) + self.position(positions))
        for block in self.blocks:
            x = block(x, valid)
        x = self.norm(x)
        if valid is not None:
            x = x * valid.unsqueeze(-1)
        return x.sum(dim=1) / self.length
