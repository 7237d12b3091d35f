"""Trains a mini-batch in PyTorch for each line that it reads: on one device, or as a stage or replica of a pipeline.

First it prints one line of JSON: the number of parameters and PyTorch's version, or what is missing.
After that it prints the seconds and the loss of each step. It ends with its input.

A pipeline is several of these processes, one for each stage of each replica, which must get their lines at the same time.
Stages without a loss print `nan`.
"""

import argparse
import json
import sys
import time

import models


def flags():
    parser = argparse.ArgumentParser(description=__doc__)
    models.add_flags(parser)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--rate", type=float, help="updates parameters by AdamW, with this learning rate")
    parser.add_argument("--double", action="store_true", help="computes in double precision")
    parser.add_argument("--vary", action="store_true", help="takes another mini-batch in each step")
    parser.add_argument("--save", metavar="FILE", help="where to write the weights before the first step")
    gpu = parser.add_argument_group("a GPU")
    gpu.add_argument("--device", default="cpu")
    gpu.add_argument("--precision", choices=["f32", "bf16", "f16"], default="f32")
    gpu.add_argument("--compile", action="store_true")
    stage = parser.add_argument_group("a stage of a replica of a pipeline")
    stage.add_argument("--cut", type=int, nargs="+", metavar="N", help="the layers of each stage")
    stage.add_argument("--stage", type=int, help="which of them this is")
    stage.add_argument("--replicas", type=int, default=1, help="of the whole pipeline")
    stage.add_argument("--replica", type=int, default=0, help="which of them this is part of")
    stage.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b")
    stage.add_argument("--recompute", action="store_true", help="runs forward again before each backward pass")
    stage.add_argument("--store", metavar="FILE", help="by which processes find each other; it is not there yet")
    return parser.parse_args()


def alone(model, args):
    """The layers, and a step on one device: micro-batches one after the other, with accumulated gradients. Replicas add
    theirs during the last backward pass.
    """
    from contextlib import nullcontext

    import torch
    from torch.nn.functional import cross_entropy

    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16}
    run = torch.compile(model) if args.compile else model
    if args.replicas > 1:
        from piped import join, replicated

        join(args)
        run = replicated(run, None)
    kind = torch.device(args.device).type
    micro_batches = args.micro_batches // args.replicas

    def step(x, labels):
        total = 0.0
        parts = list(zip(x.chunk(micro_batches), labels.chunk(micro_batches)))
        for index, (x, labels) in enumerate(parts, 1):
            reduces = args.replicas == 1 or index == len(parts)
            with nullcontext() if reduces else run.no_sync():
                with torch.autocast(kind, dtypes.get(args.precision), enabled=args.precision in dtypes):
                    loss = cross_entropy(run(x), labels) / micro_batches
                loss.backward()
            total += loss.item()
        return total

    return model, step


def trained(model, args):
    """Returns a function that trains a mini-batch: forward, backward, and the update if there is a learning rate."""
    import torch

    if args.cut and len(args.cut) > 1:
        from piped import piped

        layers, passes = piped(model, args)
    else:
        layers, passes = alone(model, args)
    if args.rate is None:
        optimizer = None
    else:
        optimizer = torch.optim.AdamW(layers.parameters(), args.rate, eps=1e-8, weight_decay=0.01, fused=True)

    def step(x, labels):
        layers.zero_grad(set_to_none=True)
        loss = passes(x, labels)
        if optimizer:
            optimizer.step()
        if args.device.startswith("cuda"):
            torch.cuda.synchronize()
        return loss

    return step


def missing(args):
    """Returns what is missing, or None."""
    try:
        import torch
        import torch.distributed as dist
        from torch.distributed import pipelining  # noqa: F401
    except ImportError as error:
        return str(error)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        return f"its version {torch.__version__} finds no CUDA device"
    has_gloo = dist.is_available() and dist.is_gloo_available()
    return None if has_gloo else f"its version {torch.__version__} is built without gloo"


def main():
    args = flags()
    if lacks := missing(args):
        return print(json.dumps({"missing": lacks}), flush=True)
    import torch

    torch.set_num_threads(args.threads)
    dtype = torch.float64 if args.double else torch.float32
    model = models.layers(args).to(args.device, dtype)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if args.save:
        torch.save(model.state_dict(), args.save)
    step = trained(model, args)

    def batch(number):
        x, labels = (whole.chunk(args.replicas)[args.replica] for whole in models.batch(args, number))
        return x.to(args.device, dtype), labels.to(args.device)

    data = batch(0)
    if not args.vary:
        step(*data)
    print(json.dumps({"parameters": parameters, "version": torch.__version__}), flush=True)
    for number, _ in enumerate(sys.stdin):
        if args.vary:
            data = batch(number)
        began = time.perf_counter()
        loss = step(*data)
        print(time.perf_counter() - began, loss, flush=True)


if __name__ == "__main__":
    main()
