#!/usr/bin/python3
"""Makes cnn.safetensors, resnet.safetensors and bottleneck.safetensors beside this script: the golden numbers
of small models over images, with batch norm.

    /usr/bin/python3 tests/golden/make_image_golden.py      (Debian's python3-torch, 1.13.1)

As in make_golden.py: float64 arithmetic on float32 numbers, rounded once when it is stored. What is trained is
one step of sgd: lr 0.1, momentum 0.9, weight decay 0.01 on the weights of convolutions and linear layers.

    input          images as planes: cnn (5, 1, 9, 8), resnet (4, 3, 20, 17), bottleneck (4, 3, 6, 5)
    target         int32 (samples)
    loss           (): mean cross-entropy with the statistics of the batch
    initial.P      parameter or running statistic P before the step
    gradient.P     gradient of the loss with respect to parameter P
    final.P        P after the step; running statistics with momentum 0.1 and the unbiased variance
    evaluation     logits of the same images after the step, with the running statistics

The models, by their configurations, with 4 classes:

    cnn            cnn { channels: [6, 10] }
    resnet         resnet { blocks: [2, 1] width: 6 }
    bottleneck     resnet { blocks: [1, 2] width: 3 bottleneck: true stem: CIFAR }

Weights of convolutions are stored as the engine has them, (K, K, inputs, outputs): what PyTorch calls weight is
stored.permute(3, 2, 0, 1). So are their gradients and final values. `fc` of the cnn has its inputs channels last.
"""

import math
import pathlib

import torch
import torch.nn.functional as F
from make_golden import loss_of, random_normal, write_safetensors

CLASSES = 4


def is_buffer(name):
    return ".running_" in name


class Shapes:
    """Runs as a model and writes down what it is asked for: name -> shape."""

    def __init__(self):
        self.shapes = {}

    def conv(self, name, channels, outputs, kernel):
        self.shapes[name + ".weight"] = (kernel, kernel, channels, outputs)

    def norm(self, name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            self.shapes[f"{name}.{part}"] = (channels,)

    def linear(self, name, inputs):
        self.shapes[name + ".weight"] = (CLASSES, inputs)
        self.shapes[name + ".bias"] = (CLASSES,)


class Net:
    """Layers over values: parameters, and buffers that a training pass changes in place."""

    def __init__(self, values, training):
        self.values, self.training = values, training

    def conv_norm(self, conv, norm, x, stride=1):
        weight = self.values[conv + ".weight"].permute(3, 2, 0, 1)
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        p = {part: self.values[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")}
        return F.batch_norm(x, *p.values(), training=self.training, momentum=0.1, eps=1e-5)

    def linear(self, name, x):
        return F.linear(x, self.values[name + ".weight"], self.values[name + ".bias"])


def cnn_shapes():
    s = Shapes()
    s.conv("conv1", 1, 6, 3)
    s.norm("bn1", 6)
    s.conv("conv2", 6, 10, 3)
    s.norm("bn2", 10)
    s.linear("fc", 10 * 4 * 4)
    return s.shapes


def cnn(net, x):
    x = F.relu(net.conv_norm("conv1", "bn1", x))
    x = F.relu(net.conv_norm("conv2", "bn2", x))
    x = F.max_pool2d(x, 2)
    return net.linear("fc", x.permute(0, 2, 3, 1).flatten(1))


class Resnet:
    def __init__(self, blocks, width, bottleneck, large_stem):
        self.blocks, self.width, self.bottleneck, self.large_stem = blocks, width, bottleneck, large_stem

    def each_block(self):
        """(name, inputs, width, outputs, stride)"""
        inputs = self.width
        for stage, count in enumerate(self.blocks):
            width = self.width * 2**stage
            outputs = width * (4 if self.bottleneck else 1)
            for i in range(count):
                yield f"layer{stage + 1}.{i}", inputs, width, outputs, 2 if stage > 0 and i == 0 else 1
                inputs = outputs

    def convolutions(self, inputs, width, outputs, stride):
        """(inputs, outputs, kernel, stride)"""
        if self.bottleneck:
            return [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        return [(inputs, width, 3, stride), (width, width, 3, 1)]

    def shapes(self):
        s = Shapes()
        s.conv("conv1", 3, self.width, 7 if self.large_stem else 3)
        s.norm("bn1", self.width)
        for name, inputs, width, outputs, stride in self.each_block():
            for i, (a, b, kernel, _) in enumerate(self.convolutions(inputs, width, outputs, stride), start=1):
                s.conv(f"{name}.conv{i}", a, b, kernel)
                s.norm(f"{name}.bn{i}", b)
            if stride != 1 or inputs != outputs:
                s.conv(f"{name}.downsample.0", inputs, outputs, 1)
                s.norm(f"{name}.downsample.1", outputs)
        s.linear("fc", outputs)
        return s.shapes

    def __call__(self, net, x):
        x = F.relu(net.conv_norm("conv1", "bn1", x, 2 if self.large_stem else 1))
        if self.large_stem:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        for name, inputs, width, outputs, stride in self.each_block():
            h = x
            steps = self.convolutions(inputs, width, outputs, stride)
            for i, (_, _, _, s) in enumerate(steps, start=1):
                h = net.conv_norm(f"{name}.conv{i}", f"{name}.bn{i}", h, s)
                h = F.relu(h) if i < len(steps) else h
            if stride != 1 or inputs != outputs:
                x = net.conv_norm(f"{name}.downsample.0", f"{name}.downsample.1", x, stride)
            x = F.relu(x + h)
        return net.linear("fc", x.mean(dim=(2, 3)))


def initial_values(generator, shapes):
    values = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            fan_in = math.prod(shape[:-1]) if len(shape) == 4 else shape[1]
            values[name] = random_normal(generator, shape, 1.5 / math.sqrt(fan_in))
        else:  # around 1 what is 1 before any training
            ones = name.endswith("running_var") or name.endswith(".weight")
            values[name] = random_normal(generator, shape, 0.1, mean=1.0 if ones else 0.0)
    return values


def make(path, model, shapes, image, samples, seed):
    generator = torch.Generator().manual_seed(seed)
    x = random_normal(generator, (samples, *image), 1.0)
    target = torch.randint(0, CLASSES, (samples,), generator=generator)
    initial = initial_values(generator, shapes)
    values = {n: v.clone().requires_grad_(not is_buffer(n)) for n, v in initial.items()}
    parameters = [v for n, v in values.items() if not is_buffer(n)]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    loss = loss_of(model(Net(values, True), x), target)
    loss.backward()
    optimizer.step()
    tensors = {"input": x, "target": target, "loss": loss}
    for name, value in values.items():
        tensors["initial." + name] = initial[name]
        tensors["final." + name] = value
        if not is_buffer(name):
            tensors["gradient." + name] = value.grad
    tensors["evaluation"] = model(Net(values, False), x)
    write_safetensors(path, tensors, {"loss": repr(loss.item())})


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    here = pathlib.Path(__file__).resolve().parent
    make(here / "cnn.safetensors", cnn, cnn_shapes(), (1, 9, 8), 5, seed=4)
    resnet = Resnet([2, 1], 6, bottleneck=False, large_stem=True)
    make(here / "resnet.safetensors", resnet, resnet.shapes(), (3, 20, 17), 4, seed=5)
    deep = Resnet([1, 2], 3, bottleneck=True, large_stem=False)
    make(here / "bottleneck.safetensors", deep, deep.shapes(), (3, 6, 5), 4, seed=6)
