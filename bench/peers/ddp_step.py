#!/usr/bin/python3
"""One rank of a training step of a model in PyTorch, with DistributedDataParallel over Gloo where there are more.

Prints a line of JSON for each bucket size: seconds of each step (of the slowest rank), the peak memory of rank 0 in bytes
so far, what a step has brought over eth0, and the seconds from --begin, a time since the epoch, to the end of the last step.
Rank and size come from the variables of torchrun; a rank is pinned to the core of its number.
bench/training/step_beside_pytorch.sh runs it at its best settings.

    RANK=0 WORLD_SIZE=1 /usr/bin/python3 ddp_step.py --model cnn --steps 30
"""

import argparse
import contextlib
import json
import os
import resource
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist
from torch import nn

import ddp_models


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--begin", type=float, default=0, help="when the process was started")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bucket-mb", type=float, nargs="+", default=[25], help="one after the other; 0: no_sync")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--bfloat16", action="store_true", help="forward under torch.autocast")
    arguments = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cores = sorted(os.sched_getaffinity(0))
    if arguments.threads == 1:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(arguments.threads)
    if size > 1:
        dist.init_process_group("gloo")
    for bucket_mb in arguments.bucket_mb:
        measure(arguments, rank, size, bucket_mb)


def received():
    path = "/sys/class/net/eth0/statistics/rx_bytes"
    return int(open(path).read()) if os.path.exists(path) else 0


def measure(arguments, rank, size, bucket_mb):
    torch.manual_seed(1)
    model, make_batch, (optimizer_class, options) = ddp_models.make(arguments.model, arguments.channels_last)
    parallel, context = model, contextlib.nullcontext()
    if size > 1:
        parallel = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=bucket_mb or 25, gradient_as_bucket_view=True, broadcast_buffers=False
        )
        context = contextlib.nullcontext() if bucket_mb else parallel.no_sync()
    optimizer = optimizer_class(model.parameters(), foreach=True, **options)
    torch.manual_seed(100 + rank)
    seconds, before = [], received()
    with context:
        for step in range(arguments.warmup + arguments.steps):
            if step == arguments.warmup:
                before = received()
            inputs, targets = make_batch()
            begin = time.monotonic()
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.bfloat16):
                loss = parallel(inputs, targets)
            loss.backward()
            if arguments.model == "gpt2_124m":  # as configs/gpt2_124m.pbtxt
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step >= arguments.warmup:
                seconds.append(time.monotonic() - begin)
    start = time.time() - arguments.begin
    bytes_per_step = (received() - before) / max(1, arguments.steps)
    if size > 1:
        everyone = [None] * size
        dist.all_gather_object(everyone, seconds)
        seconds = [max(step) for step in zip(*everyone)]
    if rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        parameters = sum(p.numel() for p in model.parameters())
        print(json.dumps({"parameters": parameters, "bucket_mb": bucket_mb, "peak_bytes": peak, "received_bytes": bytes_per_step,
                          "seconds": seconds, "start_seconds": start}))


if __name__ == "__main__":
    main()
