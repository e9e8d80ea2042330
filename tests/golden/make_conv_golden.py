#!/usr/bin/python3
"""Makes conv.safetensors beside this script: the golden numbers of a small convolution net.

    /usr/bin/python3 tests/golden/make_conv_golden.py       (Debian's python3-torch, 1.13.1)

As in make_golden.py: float64 arithmetic on float32 numbers, rounded once when it is stored, and the same
tensors. One recipe, sgd: lr 0.1, momentum 0.9, weight decay 0.01 on the weights of convolutions and linear.

    input       (5, 3, 9, 8), planes, as datasets have them
    logits      (5, 4)

    conv2d1  3 -> 20, 3x3, padding 1, bias          conv2d2  20 -> 33, 3x3, stride 2, padding 1, no bias
    relu                                            relu
    max_pool 3x3, stride 2, padding 1               avg_pool 2x2, stride 1
    x + h, where h is conv2d3: 33 -> 33, 3x3, padding 1, bias
    global_avg_pool, linear1 33 -> 4

Weights of convolutions are stored as the engine has them, (K, K, inputs, outputs): what PyTorch calls
weight is stored.permute(3, 2, 0, 1). So are their gradients and final values.
"""

import pathlib

import torch
import torch.nn.functional as F
from make_golden import golden, random_normal, write_safetensors

SHAPES = {
    "conv2d1.weight": (3, 3, 3, 20),
    "conv2d1.bias": (20,),
    "conv2d2.weight": (3, 3, 20, 33),
    "conv2d3.weight": (3, 3, 33, 33),
    "conv2d3.bias": (33,),
    "linear1.weight": (4, 33),
    "linear1.bias": (4,),
}


def conv(p, name, x, **options):
    return F.conv2d(x, p[name + ".weight"].permute(3, 2, 0, 1), p.get(name + ".bias"), **options)


def net(p, x):
    x = F.max_pool2d(F.relu(conv(p, "conv2d1", x, padding=1)), 3, stride=2, padding=1)
    x = F.avg_pool2d(F.relu(conv(p, "conv2d2", x, stride=2, padding=1)), 2, stride=1)
    x = x + conv(p, "conv2d3", x, padding=1)
    return F.linear(x.mean(dim=(2, 3)), p["linear1.weight"], p["linear1.bias"])


def sgd(parameters):
    weights = [p for p in parameters.values() if p.dim() > 1]
    biases = [p for p in parameters.values() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def main():
    generator = torch.Generator().manual_seed(3)
    x = random_normal(generator, (5, 3, 9, 8), 1.0)
    target = torch.randint(0, 4, (5,), generator=generator)
    tensors, metadata = golden(net, SHAPES, x, target, [("sgd", sgd, False, True)], generator)
    write_safetensors(pathlib.Path(__file__).resolve().parent / "conv.safetensors", tensors, metadata)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
