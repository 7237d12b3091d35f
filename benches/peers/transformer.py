"""A stack of equal Transformer layers: PyTorch's own, norm first, GELU, no dropout."""

from torch import nn


class Layer(nn.TransformerEncoderLayer):
    """`[n, length, d]` to the same."""

    def __init__(self, d, heads):
        super().__init__(d, heads, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)


class LastLayer(Layer):
    """`[n, length, d]` to logits `[n, d]`: the mean over the sequence."""

    def forward(self, x):
        return super().forward(x).mean(dim=1)


def transformer(layers, d, heads):
    """As many layers as on the other side, which also takes the mean after its last."""
    return nn.Sequential(*(Layer(d, heads) for _ in range(layers - 1)), LastLayer(d, heads))
