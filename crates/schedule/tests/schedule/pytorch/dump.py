"""Writes this folder's files with PyTorch 2.15 (pip install torch==2.15.0; no GPU is needed)."""

from types import SimpleNamespace

from torch.distributed.pipelining import schedules

RANKS, STAGES, MICRO_BATCHES = 2, 4, 4

for name in ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]:
    own = [0, 3] if name in ["ZBVZeroBubble", "DualPipeV"] else [0, 2]
    stages = [
        SimpleNamespace(
            stage_index=index,
            num_stages=STAGES,
            group_size=RANKS,
            group_rank=0,
            group=None,
            submod=None,
            is_first=index == 0,
            is_last=index == STAGES - 1,
        )
        for index in own
    ]
    schedule = getattr(schedules, "Schedule" + name)(stages, MICRO_BATCHES)
    for format in ["compute_only", "compute_comms"]:
        schedule._dump_csv(f"{name}-{format}.csv", format=format)
