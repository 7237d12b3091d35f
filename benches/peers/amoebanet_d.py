"""AmoebaNet-D in PyTorch, with the layers and names of `models/amoebanet`."""

import torch
from torch import nn
from torch.nn import functional as F


class ReluConvNorm(nn.Module):
    """ReLU, convolution without bias padded by half its kernel, batch norm."""

    def __init__(self, inputs, outputs, kernel=(1, 1), stride=(1, 1)):
        super().__init__()
        padding = (kernel[0] // 2, kernel[1] // 2)
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return self.bn(self.conv(F.relu(x)))


def chain(*units):
    """Units one after the other; a single one is also a chain, for its name in files."""
    return nn.Sequential(*units)


class FactorizedReduce(nn.Module):
    """Halves the map: half of the channels reads the pixels at even places, half those at odd ones."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs // 2, 1, 2, bias=False)
        self.conv2 = nn.Conv2d(inputs, outputs - outputs // 2, 1, 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x):
        x = F.relu(x)
        shifted = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))[:, :, 1:, 1:]
        return self.bn(torch.cat([self.conv1(x), self.conv2(shifted)], dim=1))


def bottleneck(channels, *convolutions):
    """Convolutions, each a kernel and a stride, on a quarter of the channels."""
    inner = max(channels // 4, 1)
    middle = (ReluConvNorm(inner, inner, kernel, stride) for kernel, stride in convolutions)
    return chain(ReluConvNorm(channels, inner), *middle, ReluConvNorm(inner, channels))


def identity(channels, stride):
    return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels)


def conv_1x1(channels, stride):
    return chain(ReluConvNorm(channels, channels, (1, 1), (stride, stride)))


def conv_3x3(channels, stride):
    return bottleneck(channels, ((3, 3), (stride, stride)))


def conv_1x7_7x1(channels, stride):
    return bottleneck(channels, ((1, 7), (1, stride)), ((7, 1), (stride, 1)))


def max_pool_2x2(channels, stride):
    return nn.MaxPool2d(2, stride, ceil_mode=True)


def max_pool_3x3(channels, stride):
    return nn.MaxPool2d(3, stride, padding=1)


def average_pool_3x3(channels, stride):
    return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)


# Each pair of operations makes a state: the sum of what they make of an earlier one. States 0 and 1
# are the outputs of the two cells before; the output states are concatenated.
NORMAL = {
    "stride": 1,
    "entries": [
        (conv_1x1, 1),
        (max_pool_3x3, 1),
        (identity, 1),
        (conv_1x7_7x1, 0),
        (conv_1x1, 0),
        (conv_1x7_7x1, 0),
        (max_pool_3x3, 2),
        (identity, 2),
        (average_pool_3x3, 1),
        (conv_1x1, 5),
    ],
    "outputs": [0, 3, 4, 6],
}
REDUCTION = {
    "stride": 2,
    "entries": [
        (max_pool_2x2, 0),
        (max_pool_3x3, 0),
        (identity, 2),
        (conv_3x3, 1),
        (conv_1x7_7x1, 2),
        (max_pool_3x3, 2),
        (identity, 3),
        (max_pool_2x2, 1),
        (average_pool_3x3, 2),
        (conv_1x1, 3),
    ],
    "outputs": [4, 5, 6],
}


class Cell(nn.Module):
    """Takes the outputs of the last cell and of the one before; returns its own and the last."""

    def __init__(self, genotype, inputs, reduced, channels):
        super().__init__()
        previous, before = inputs
        self.reduce1 = chain(ReluConvNorm(previous, channels))
        if reduced:
            self.reduce2 = FactorizedReduce(before, channels)
        elif before == channels:
            self.reduce2 = nn.Identity()
        else:
            self.reduce2 = chain(ReluConvNorm(before, channels))
        self.states = [state for _, state in genotype["entries"]]
        self.operations = nn.ModuleList(
            make(channels, genotype["stride"] if state < 2 else 1)
            for make, state in genotype["entries"]
        )
        self.outputs = genotype["outputs"]

    def forward(self, pair):
        previous, before = pair
        states = [self.reduce1(previous), self.reduce2(before)]
        for i in range(0, len(self.operations), 2):
            left, right = self.operations[i], self.operations[i + 1]
            states.append(left(states[self.states[i]]) + right(states[self.states[i + 1]]))
        return torch.cat([states[i] for i in self.outputs], dim=1), previous


class Stem(ReluConvNorm):
    """The first cell reads its output twice."""

    def __init__(self, filters, stride):
        super().__init__(3, filters, (3, 3), (stride, stride))

    def forward(self, x):
        x = super().forward(x)
        return x, x


class Head(nn.Module):
    """Mean over the map, then a linear layer."""

    def __init__(self, channels, classes):
        super().__init__()
        self.fc = nn.Linear(channels, classes)

    def forward(self, pair):
        return self.fc(pair[0].mean(dim=(2, 3)))


def amoebanet_d(layers, filters, classes, stride):
    """AmoebaNet-D(layers, filters). `stride` is that of the first convolution: 2 for large images."""
    plan = [(REDUCTION if stride == 2 else NORMAL, filters // 2)]
    for width in (filters, 2 * filters, 4 * filters):
        plan += [(REDUCTION, width)] + [(NORMAL, width)] * (layers // 3)
    model = [Stem(filters // 4, stride)]
    inputs, reduced = (filters // 4, filters // 4), False
    for genotype, channels in plan:
        model.append(Cell(genotype, inputs, reduced, channels))
        inputs = (len(genotype["outputs"]) * channels, inputs[0])
        reduced = genotype["stride"] == 2
    return nn.Sequential(*model, Head(inputs[0], classes))
