"""A stack of equal Transformer layers: PyTorch's own, norm first, GELU, no dropout."""

from torch import nn


class Transformer(nn.Module):
    """`[n, length, d]` to logits `[n, d]`, the mean over the sequence."""

    def __init__(self, layers, d, heads):
        super().__init__()
        layer = lambda: nn.TransformerEncoderLayer(
            d, heads, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.Sequential(*(layer() for _ in range(layers)))

    def forward(self, x):
        return self.layers(x).mean(dim=1)
