#!/usr/bin/python3
"""Trains models of torchvision, and a GPT block, with the engine and with PyTorch, and compares.

    tests/onnx/compare.py ENGINE DATA [MODEL...]     (Debian's python3-torch 1.13.1, -torchvision, -onnx)

With libopenblas0-pthread and OPENBLAS_CORETYPE=SKYLAKEX a model takes at most five minutes; with reference BLAS
vgg11_bn took more than 25.

ENGINE is the program, DATA a folder with mnist10k and tinyshakespeare. Each model makes 20 steps of plain SGD, from
the same weights, on the same batches of real images (MNIST, resized, as three channels) or text, without dropout.

How far is a run in float32 from PyTorch in float64? By its losses: the largest difference of a step. By its weights
(and running statistics): the norm of the difference, over the norm of what training has changed. What PyTorch's own
float32 does is the yardstick: the farthest of four runs whose inputs differ by a rounding. The engine may be three
times as far; the learning rate is small enough that a rounding does not grow into another course of training.
"""

import copy
import gzip
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from torch.nn import functional as F

import models

STEPS = 20
# Model: extent of its images, images in a batch, learning rate.
CASES = {
    "resnet18": (64, 8, 3e-5),
    "mobilenet_v2": (64, 8, 3e-5),
    "vgg11_bn": (224, 2, 3e-5),
    "squeezenet1_1": (64, 8, 1e-3),
    "alexnet": (224, 4, 1e-3),
    "googlenet": (64, 8, 3e-5),
    "regnet_y_400mf": (64, 8, 3e-5),
    "vit_b_16": (64, 4, 1e-3),
    "gpt": (64, 4, 1e-3),
}


def images(data, size, count):
    def read(name, header):
        with gzip.open(data / "mnist10k" / name) as file:
            return np.frombuffer(file.read(), np.uint8, offset=header).copy()

    pixels = torch.from_numpy(read("t10k-images-idx3-ubyte.gz", 16)[:count * 784]).view(count, 1, 28, 28)
    planes = F.interpolate(pixels.float() / 255, size=(size, size), mode="bilinear", align_corners=False)
    labels = torch.from_numpy(read("t10k-labels-idx1-ubyte.gz", 8)[:count]).long()
    return ((planes - 0.1307) / 0.3081).repeat(1, 3, 1, 1).contiguous(), labels


def tokens(data, length, count, offset=0):
    text = (data / "tinyshakespeare" / "input.txt").read_bytes()[offset:offset + count * length + 1]
    values = torch.tensor(list(text))
    return values[:-1].view(count, length), values[1:].view(count, length)


def find_tokens(data, model, batch, length, loss):
    """What the engine has read: the samples of an epoch begin somewhere in the first `length` tokens."""
    def off(offset):
        inputs, targets = tokens(data, length, batch, offset)
        with torch.no_grad():
            return abs(F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item() - loss)

    return tokens(data, length, STEPS * batch, min(range(length), key=off))


def write_idx(path, array, code):
    with open(path, "wb") as file:
        file.write(struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape))
        file.write(array.tobytes())


def train(begin, rate, inputs, targets, batch, dtype):
    """PyTorch: the losses, and the weights in float64."""
    model = copy.deepcopy(begin).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for begin in range(0, STEPS * batch, batch):
        x, y = inputs[begin:begin + batch], targets[begin:begin + batch]
        logits = model(x.to(dtype) if x.is_floating_point() else x)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), state_of(model)


def state_of(model):
    return {name: value.detach().double() for name, value in model.state_dict().items()
            if value.is_floating_point() and not name.endswith((".cos", ".sin", ".mask"))}


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: torch.from_numpy(np.frombuffer(data[8 + size + tensor["data_offsets"][0]:8 + size + tensor["data_offsets"][1]],
                                                 np.float32).reshape(tensor["shape"]).astype(np.float64))
            for name, tensor in header.items() if tensor["dtype"] == "F32"}


def engine(program, folder, data, name, rate, batch, inputs, targets, expected):
    """The same by the engine, from the exported file."""
    if name == "gpt":
        source = f'text {{ path: "{data}/tinyshakespeare/input.txt" context: {inputs.shape[1]} holdout: 0 }}'
    else:
        write_idx(folder / "images", inputs.numpy().astype(">f4"), 13)
        write_idx(folder / "labels", targets.numpy().astype(np.uint8), 8)
        source = (f'mnist {{ images: "{folder}/images" labels: "{folder}/labels" holdout: 0 '
                  f'classes: {models.CLASSES} }}')
    config = folder / "run.pbtxt"
    config.write_text(f"""
model {{ onnx {{ path: "{folder}/model.onnx" }} }}
data {{ {source} shuffle: false }}
train {{ steps: {STEPS} global_batch: {batch} learning_rate {{ base: {rate} }} }}
plugins: ["fifo_sched", "sgd", "cpu_ops"]
output {{ checkpoint: "{folder}/model.safetensors" metrics: "{folder}/metrics.jsonl" }}
""")
    subprocess.run([program, "run", config, "-n", "1", "--quiet"], check=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line.get("type", line.get("event")) == "step"]
    stored = read_safetensors(folder / "model.safetensors")
    missing = [key for key in expected if key not in stored or stored[key].shape != expected[key].shape]
    if missing:
        sys.exit(f"{name}: not in the checkpoint under PyTorch's name and shape: {missing[:5]}")
    return np.array(losses), {key: stored[key] for key in expected}


def distance(weights, reference, begin):
    norm = lambda pairs: sum(((a - b) ** 2).sum().item() for a, b in pairs) ** 0.5
    return (norm((weights[key], reference[key]) for key in reference) /
            norm((reference[key], begin[key]) for key in reference))


def compare(program, data, name):
    size, batch, rate = CASES[name]
    inputs, targets = (tokens if name == "gpt" else images)(data, size, STEPS * batch)
    begin = time.time()
    model = models.make(name, size)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        models.export(model, inputs[:batch], str(folder / "model.onnx"))
        initial = state_of(model)
        losses, weights = engine(program, folder, data, name, rate, batch, inputs, targets, initial)
    if name == "gpt":
        inputs, targets = find_tokens(data, model, batch, size, losses[0])
    reference_losses, reference = train(model, rate, inputs, targets, batch, torch.float64)
    spread_loss = spread_weights = 0
    generator = torch.Generator().manual_seed(1)
    for run in range(4):
        near = inputs
        if inputs.is_floating_point() and run > 0:
            near = inputs * (1 + (torch.randint(0, 3, inputs.shape, generator=generator) - 1) * 2.0 ** -24)
        run_losses, run_weights = train(model, rate, near, targets, batch, torch.float32)
        spread_loss = max(spread_loss, abs(run_losses - reference_losses).max())
        spread_weights = max(spread_weights, distance(run_weights, reference, initial))
    off_loss = abs(losses - reference_losses).max()
    off_weights = distance(weights, reference, initial)
    passed = off_loss <= 3 * spread_loss and off_weights <= 3 * spread_weights
    print(f"| {name} | {size} | {batch} | {reference_losses[0]:.4f} | {reference_losses[-1]:.4f} | "
          f"{off_loss:.1e} | {spread_loss:.1e} | {off_weights:.1e} | {spread_weights:.1e} | "
          f"{'yes' if passed else 'NO'} |  {time.time() - begin:.0f} s", flush=True)
    return passed


def main():
    program, data, *names = sys.argv[1:]
    print("| model | extent | batch | first loss | last loss | loss: engine | PyTorch | weights: engine | PyTorch | within 3x |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    results = [compare(program, pathlib.Path(data), name) for name in names or CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
