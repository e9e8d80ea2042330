#!/usr/bin/python3
"""One rank of the model of configs/gpt_text.pbtxt in PyTorch DistributedDataParallel, for comparison.

Byte-level GPT: 4 layers, width 256, 4 heads, context 128, vocabulary 256, tied head, AdamW, batch 8 per
rank, Gloo. Prints one line of JSON with the seconds of each step. Rank and size come from the variables of
torchrun. bench/peers/gpt_on_a_link.sh runs it at its best settings.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... /usr/bin/python3 ddp_gpt.py --steps 30 --bucket-mb 1
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def attention(self, x, mask):
        samples, length, width = x.shape
        split = (samples, length, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        scores = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5
        weights = scores.masked_fill(mask, float("-inf")).softmax(dim=3)
        return self.proj((weights @ v).transpose(1, 2).reshape(samples, length, width))

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.out(functional.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, layers, width, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.mask = torch.ones(context, context, dtype=torch.bool).triu(1)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.mask)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Gpt(vocabulary=256, context=128, layers=4, width=256, heads=4)
    parallel = model
    if size > 1:
        dist.init_process_group("gloo")
        parallel = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=arguments.bucket_mb, gradient_as_bucket_view=True
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    seconds = []
    for step in range(arguments.warmup + arguments.steps):
        tokens = torch.randint(0, 256, (arguments.batch, 129))
        begin = time.monotonic()
        optimizer.zero_grad(set_to_none=False)
        parallel(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        if step >= arguments.warmup:
            seconds.append(time.monotonic() - begin)
    if size > 1:
        everyone = [None] * size
        dist.all_gather_object(everyone, seconds)
        seconds = [max(step) for step in zip(*everyone)]
    if rank == 0:
        parameters = sum(p.numel() for p in model.parameters())
        print(json.dumps({"parameters": parameters, "seconds": seconds}))


if __name__ == "__main__":
    main()
