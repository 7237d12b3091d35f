"""Runs a training step in PyTorch, forward and backward, for each line that it reads.

First it prints one line of JSON: the number of parameters and PyTorch's version, or what is missing.
After that it prints the seconds of each step. It ends with its input.
"""

import argparse
import json
import sys
import time


def flags():
    parser = argparse.ArgumentParser(description=__doc__)
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
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true")
    return parser.parse_args()


def waves(torch, *shape):
    """The values that the other side uses."""
    length = 1
    for size in shape:
        length *= size
    return (torch.arange(length).float() * 0.37).sin().reshape(shape)


def model_and_input(torch, args):
    if args.model == "amoebanet":
        from amoebanet_d import amoebanet_d

        model = amoebanet_d(args.layers, args.filters, args.classes, args.stride)
        x = waves(torch, args.batch, 3, args.side, args.side)
        if args.channels_last:
            model = model.to(memory_format=torch.channels_last)
            x = x.to(memory_format=torch.channels_last)
        return model, x
    from transformer import Transformer

    return Transformer(args.layers, args.d, args.heads), waves(torch, args.batch, args.length, args.d)


def main():
    args = flags()
    try:
        import torch
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, x = model_and_input(torch, args)
    model.train()
    labels = torch.arange(args.batch) % args.classes

    def step():
        began = time.perf_counter()
        model.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        return time.perf_counter() - began

    step()
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"parameters": parameters, "version": torch.__version__}), flush=True)
    for _ in sys.stdin:
        print(step(), flush=True)


if __name__ == "__main__":
    main()
