#!/usr/bin/env python3
"""Training steps of GPT-2 (124 million parameters) on one GPU in PyTorch, at its best settings.

bfloat16 autocast with float32 parameters and a bfloat16 residual stream, scaled_dot_product_attention by FlashAttention or
cuDNN, fused AdamW, tied token table padded to 50,304 rows, gradients clipped to a norm of 1; eager, or by a mode of
torch.compile. Prints a line of JSON: seconds of each step, and the names of the kernels that attention ran, which are looked
at after the timing. The device is waited for once per block of steps, not in every one.

    gpt2_gpu.py --batch 64 --steps 20 --mode default --attention cudnn
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

MODES = ["eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 12, 768, 12, 1024, 50304


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        samples, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(samples, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(samples, length, WIDTH))
        return x + self.out(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("proj.weight", "out.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * LAYERS) ** 0.5 if residual else 0.02)

    def forward(self, tokens, targets):
        x = (self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def attention_kernels(step):
    """What attention ran on the device, by names. Times stand also where the profiler does not work."""
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step(0)
            torch.cuda.synchronize()
        names = {event.key for event in profile.key_averages()}
    except RuntimeError as error:
        return [f"unknown: {error}"]
    return sorted(name for name in names if any(word in name for word in ("flash", "sdpa", "fmha", "attention")))


def measure(arguments):
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = Gpt2().cuda()
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    run = model if arguments.mode == "eager" else torch.compile(model, mode=arguments.mode, dynamic=False)
    replays = arguments.mode in ("reduce-overhead", "max-autotune")  # CUDA graphs
    pinned = [torch.randint(0, 50257, (2, arguments.batch, CONTEXT)).pin_memory() for _ in range(4)]

    def step(index):
        tokens, targets = pinned[index % len(pinned)].cuda(non_blocking=True)
        if replays:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    first = None
    for index in range(10):
        loss = step(index)
        first = first if first is not None else loss.item()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(arguments.blocks):
        begin = time.monotonic()
        for index in range(arguments.steps):
            loss = step(index)
        torch.cuda.synchronize()
        seconds.append((time.monotonic() - begin) / arguments.steps)
    return {"seconds": seconds, "peak_bytes": torch.cuda.max_memory_allocated(), "first_loss": first, "loss": loss.item(),
            "attention": attention_kernels(step)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--mode", choices=MODES, default="default")
    parser.add_argument("--attention", choices=list(ATTENTION), default="cudnn")
    arguments = parser.parse_args()
    # Around everything, because backward passes are compiled when they first run.
    with sdpa_kernel(ATTENTION[arguments.attention]):
        print(json.dumps(measure(arguments)))


if __name__ == "__main__":
    main()
