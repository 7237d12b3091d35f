"""One stage of a replica in its own process: stages by PyTorch's `torch.distributed.pipelining`, replicas by
`DistributedDataParallel`.
"""

import os
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

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

    def __init__(self, layers, channels_last, recompute):
        super().__init__()
        self.layers = layers
        self.channels_last = channels_last
        self.recompute = recompute

    def forward(self, *flow):
        if self.channels_last:
            flow = tuple(Packed.apply(x).to(memory_format=torch.channels_last) for x in flow)
        flow = self.run(flow[0] if len(flow) == 1 else flow)
        if not self.channels_last:
            return flow
        return tuple(map(Packed.apply, flow)) if isinstance(flow, tuple) else Packed.apply(flow)

    def run(self, flow):
        if not self.recompute:
            return self.layers(flow)
        # No layer of these models draws a number while it trains.
        return checkpoint(self.layers, flow, use_reentrant=False, preserve_rng_state=False)


def join(args):
    """Waits for the other processes, which meet through a file and communicate over loopback at free ports."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ranks = len(args.cut) * args.replicas
    rank = args.replica * len(args.cut) + args.stage
    store = dist.FileStore(args.store, ranks)
    store.set_timeout(timedelta(minutes=2))
    # A process may wait long for its turn.
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(hours=3))


def groups(args):
    """This process's pipeline, and the replicas of its stage. All processes make all groups, in this order."""
    stages, timeout = len(args.cut), timedelta(hours=3)
    ranks = range(stages * args.replicas)
    pipelines = [dist.new_group(ranks[first : first + stages], timeout) for first in ranks[::stages]]
    replicas = [dist.new_group(ranks[stage::stages], timeout) for stage in range(stages)]
    return pipelines[args.replica], replicas[args.stage]


def replicated(layers, group):
    """Its gradients are the means over the group's; running statistics stay each replica's own, which is faster."""
    return DistributedDataParallel(layers, process_group=group, forward_sync_buffers=False, gradient_as_bucket_view=True)


def piped(model, args):
    """This stage's layers, and its step. Only the last stage has a loss."""
    join(args)
    pipeline, replicas = groups(args)
    stages = len(args.cut)
    first, last = sum(args.cut[: args.stage]), args.stage == stages - 1
    layers = model[first : first + args.cut[args.stage]]
    # Where a micro-batch's backward pass follows at once, there is nothing to gain.
    recompute = args.recompute and not (last and args.schedule == "1f1b")
    module = Stage(layers, args.channels_last, recompute)
    if args.replicas > 1:
        module = replicated(module, replicas)
    stage = pipelining.PipelineStage(module, args.stage, stages, torch.device("cpu"), group=pipeline)
    micro_batches = args.micro_batches // args.replicas
    schedule = SCHEDULES[args.schedule](stage, micro_batches, loss_fn=cross_entropy)

    def step(x, labels):
        losses = []
        inputs = [x] if args.stage == 0 else []
        given = {"target": labels, "losses": losses} if last else {}
        # The schedule begins the reduction itself, in the last backward pass. Without `no_sync` the first step, which
        # also finds out shapes, begins it in each one, and fails.
        with module.no_sync() if args.replicas > 1 else nullcontext():
            schedule.step(*inputs, **given)
        return sum(loss.item() for loss in losses) / len(losses) if last else float("nan")

    return layers, step
