"""A rank that adds up tensors with the others, by torch.distributed over gloo.

The first rank prints the seconds of one all-reduce of each size. Sizes, numbers of repetitions and tensors are those of
`benches/allreduce/src/turn.rs`.
"""

import argparse
import time

import torch
import torch.distributed as dist

BYTES = 512 << 20
TIMES = (4, 2000)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="by which ranks find each other; it is not there yet")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="in bytes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    store = dist.FileStore(args.store, args.ranks)
    dist.init_process_group("gloo", store=store, rank=args.rank, world_size=args.ranks)
    for size in args.sizes:
        tensor = torch.ones(size // 4)
        times = min(max(BYTES // size, TIMES[0]), TIMES[1])
        for turn in range(times + 2):
            if turn == 2:
                began = time.perf_counter()
            dist.all_reduce(tensor)
        if args.rank == 0:
            print((time.perf_counter() - began) / times)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
