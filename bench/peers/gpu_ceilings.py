#!/usr/bin/env python3
"""What this GPU reaches at all, by PyTorch, as a line of JSON: TFLOP/s of a bfloat16 product of 8,192^3 and GB/s of a copy in
its memory (read and written), each the median of ten blocks. The operands are random: a chip that multiplies zeros is faster.
"""

import json
import statistics

import torch


def median_seconds(call, calls):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seconds = []
    for _ in range(12):
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) * 1e-3 / calls)
    return statistics.median(seconds[2:])


def main():
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    seconds = median_seconds(lambda: torch.matmul(a, b, out=product), 20)
    source = torch.empty(2 << 30, device="cuda", dtype=torch.uint8).random_()
    target = torch.empty_like(source)
    copy_seconds = median_seconds(lambda: target.copy_(source), 5)
    print(json.dumps({"tflops": 2 * size**3 / seconds * 1e-12, "gbytes_per_s": 2 * source.numel() / copy_seconds * 1e-9}))


if __name__ == "__main__":
    main()
