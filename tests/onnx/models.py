"""The models that compare.py trains, and how they are exported."""
import math
import warnings

import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torchvision import models

CLASSES = 10


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """A block of GPT with rotary embedding, RMS norm and SwiGLU, as Llama has them."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        size = width // heads
        inverse = 1.0 / 10000 ** (torch.arange(0, size, 2).double() / size)
        angles = torch.outer(torch.arange(length).double(), inverse)
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos().float())
        self.register_buffer("sin", angles.sin().float())
        self.register_buffer("mask", torch.ones(length, length).tril().view(1, 1, length, length))

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        q, k = self.rotate(q), self.rotate(k)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        h = (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(batch, length, width)
        x = x + self.proj(h)
        h = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Gpt(nn.Module):
    def __init__(self, vocabulary=256, width=64, heads=4, length=64, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, heads, length) for _ in range(layers)))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def make(name, size):
    """A model with random weights and without dropout, in training mode."""
    torch.manual_seed(0)
    if name == "gpt":
        return Gpt().train()
    more = {"googlenet": dict(aux_logits=False, init_weights=True),
            "inception_v3": dict(aux_logits=False, init_weights=True)}.get(name, {})
    if name.startswith("vit"):
        more = dict(image_size=size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(models, name)(num_classes=CLASSES, **more)
    if name.startswith("vgg"):
        # At 64 x 64 a plane of 2 x 2 is left, which adaptive pooling to 7 x 7 would only repeat.
        model.avgpool, model.classifier[0] = nn.Identity(), nn.Linear(512 * (size // 32) ** 2, 4096)
    for module in model.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model.train()


def export(model, sample, path, opset=17, dynamic=True):
    """Writes the file, and gives the model the weights in it: to trace a model in training mode changes the running
    statistics of its batch norms."""
    axes = dict(input={0: "batch"}, logits={0: "batch"}) if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, sample, path, training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=False, opset_version=opset, input_names=["input"],
                          output_names=["logits"], dynamic_axes=axes)
    stored = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
              for tensor in onnx.load(path).graph.initializer}
    state = model.state_dict()
    state.update((name, value) for name, value in stored.items() if name in state)
    model.load_state_dict(state)
