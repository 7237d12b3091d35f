"""One stage of a pipeline in its own process, by PyTorch's `torch.distributed.pipelining`."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.nn.functional import cross_entropy

SCHEDULES = {"1f1b": pipelining.Schedule1F1B, "gpipe": pipelining.ScheduleGPipe}


class Packed(torch.autograd.Function):
    """A contiguous tensor and its gradient, as gloo needs them."""

    @staticmethod
    def forward(_, x):
        return x.contiguous()

    @staticmethod
    def backward(_, gradient):
        return gradient.contiguous()


class Stage(nn.Module):
    """Some of the layers. A pair of tensors comes from the stage before as two arguments."""

    def __init__(self, layers, channels_last):
        super().__init__()
        self.layers = layers
        self.channels_last = channels_last

    def forward(self, *flow):
        if self.channels_last:
            flow = tuple(Packed.apply(x).to(memory_format=torch.channels_last) for x in flow)
        flow = self.layers(flow[0] if len(flow) == 1 else flow)
        if not self.channels_last:
            return flow
        return tuple(map(Packed.apply, flow)) if isinstance(flow, tuple) else Packed.apply(flow)


def join(args):
    """Waits for the other stages, which meet through a file and communicate over loopback at free ports."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    stages = len(args.cut)
    store = dist.FileStore(args.store, stages)
    store.set_timeout(timedelta(minutes=2))
    # A stage may wait long for its turn.
    dist.init_process_group("gloo", store=store, rank=args.stage, world_size=stages, timeout=timedelta(hours=3))


def piped(model, args):
    """This stage's layers, and its step. Only the last stage has a loss."""
    join(args)
    stages = len(args.cut)
    first, last = sum(args.cut[: args.stage]), args.stage == stages - 1
    layers = model[first : first + args.cut[args.stage]]
    stage = pipelining.PipelineStage(Stage(layers, args.channels_last), args.stage, stages, torch.device("cpu"))
    schedule = SCHEDULES[args.schedule](stage, args.micro_batches, loss_fn=cross_entropy)

    def step(x, labels):
        losses = []
        inputs = [x] if args.stage == 0 else []
        given = {"target": labels, "losses": losses} if last else {}
        schedule.step(*inputs, **given)
        return sum(loss.item() for loss in losses) / len(losses) if last else float("nan")

    return layers, step
