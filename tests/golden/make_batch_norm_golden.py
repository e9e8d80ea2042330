#!/usr/bin/python3
"""Makes batch_norm.safetensors beside this script: the golden numbers of batch normalisation.

    /usr/bin/python3 tests/golden/make_batch_norm_golden.py     (Debian's python3-torch, 1.13.1)

As in make_golden.py: float64 arithmetic on float32 numbers, rounded once when it is stored. Two layers,
`plane` over (5, 3, 4, 20) (torch.nn.BatchNorm2d, eps 1e-5, momentum 0.1) and `vector` over (6, 7)
(torch.nn.BatchNorm1d, eps 1e-3, momentum 0.3). Tensors of layer L, channels last as the engine has them:

    L.weight, L.bias, L.running_mean, L.running_var         before training
    L.K.x, L.K.dy                                           of training step K = 1, 2
    L.K.y, L.K.dx, L.K.dweight, L.K.dbias                   what the step gives
    L.K.running_mean, L.K.running_var                       after the step; weight and bias stay
    L.x, L.y                                                in evaluation, after both steps
"""

import pathlib

import torch
from make_golden import random_normal, write_safetensors


def channels_first(x):
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


def channels_last(x):
    return x.permute(0, 2, 3, 1) if x.dim() == 4 else x


def make_layer(name, layer, shape, generator):
    channels = shape[-1]
    initial = {
        "weight": random_normal(generator, (channels,), 0.5, mean=1.0),
        "bias": random_normal(generator, (channels,), 0.5),
        "running_mean": random_normal(generator, (channels,), 1.0),
        "running_var": random_normal(generator, (channels,), 0.1, mean=1.0),
    }
    layer = layer.double()
    layer.load_state_dict({**initial, "num_batches_tracked": torch.tensor(0)})
    tensors = {f"{name}.{key}": value for key, value in initial.items()}
    layer.train()
    for step in (1, 2):
        # A mean and a deviation of its own for each channel.
        x = random_normal(generator, shape, 1.0) * random_normal(generator, (channels,), 1.0)
        x = (x + random_normal(generator, (channels,), 3.0)).float().double().requires_grad_()
        dy = random_normal(generator, shape, 1.0)
        layer.zero_grad()
        y = channels_last(layer(channels_first(x)))
        y.backward(dy)
        results = {
            "x": x, "dy": dy, "y": y, "dx": x.grad,
            "dweight": layer.weight.grad.clone(), "dbias": layer.bias.grad.clone(),
            "running_mean": layer.running_mean.clone(), "running_var": layer.running_var.clone(),
        }  # fmt: skip
        tensors.update({f"{name}.{step}.{key}": value for key, value in results.items()})
    layer.eval()
    tensors[name + ".x"] = random_normal(generator, shape, 2.0)
    tensors[name + ".y"] = channels_last(layer(channels_first(tensors[name + ".x"])))
    return tensors


def main():
    generator = torch.Generator().manual_seed(4)
    tensors = make_layer("plane", torch.nn.BatchNorm2d(20), (5, 3, 4, 20), generator)
    vector = torch.nn.BatchNorm1d(7, eps=1e-3, momentum=0.3)
    tensors.update(make_layer("vector", vector, (6, 7), generator))
    path = pathlib.Path(__file__).resolve().parent / "batch_norm.safetensors"
    write_safetensors(path, tensors, {})


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    main()
