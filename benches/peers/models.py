"""The models of both sides as lists of layers, and data that both sides make in the same way."""

import math


def add_flags(parser):
    parser.add_argument("--model", choices=["amoebanet", "transformer"], required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--filters", type=int, help="AmoebaNet's D")
    parser.add_argument("--side", type=int, help="height and width of AmoebaNet's images")
    parser.add_argument("--stride", type=int, help="of AmoebaNet's first convolution: 2 for large images")
    parser.add_argument("--d", type=int, help="the Transformer's width")
    parser.add_argument("--heads", type=int)
    parser.add_argument("--length", type=int, help="of the Transformer's sequences")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--channels-last", action="store_true")


def layers(args):
    """The whole model as a `Sequential`, with the same weights in every process."""
    import torch

    torch.manual_seed(0)
    if args.model == "amoebanet":
        from amoebanet_d import amoebanet_d

        model = amoebanet_d(args.layers, args.filters, args.classes, args.stride)
    else:
        from transformer import transformer

        model = transformer(args.layers, args.d, args.heads)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model.train()


def batch(args, step):
    """Inputs and labels of a step: waves whose length depends on the class, and whose phase on the sample."""
    import torch

    amoebanet = args.model == "amoebanet"
    shape = (3, args.side, args.side) if amoebanet else (args.length, args.d)
    samples = torch.arange(args.batch) + args.batch * step
    labels = samples % args.classes
    places = torch.arange(math.prod(shape)).float() * 0.37
    lengths = labels.float() * 0.01 + 1.0
    begins = samples.float() * 0.7
    x = (places[None, :] * lengths[:, None] + begins[:, None]).sin().reshape(args.batch, *shape)
    if args.channels_last:
        x = x.to(memory_format=torch.channels_last)
    return x, labels
