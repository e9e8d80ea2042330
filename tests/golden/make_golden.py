#!/usr/bin/python3
"""Makes the golden numbers of the models: mlp.safetensors and gpt.safetensors beside this script.

    /usr/bin/python3 tests/golden/make_golden.py            (Debian's python3-torch, 1.13.1)

The tests read the files; only this script needs PyTorch. All arithmetic is in float64, on values that
are float32 numbers to begin with, and is rounded to float32 once, when it is stored: the numbers are
exact for a float32 implementation.

Tensors of each file (float32 unless said otherwise):

    input               mlp: (7, 12); gpt: int32 (3, 8), tokens
    target              int32; mlp: (7); gpt: (3, 8), tokens
    logits              mlp: (7, 5); gpt: (3, 8, 17)
    loss                (): mean cross-entropy over all targets
    initial.P           parameter P before training
    gradient.P          gradient of the loss with respect to P
    losses.R            (10): losses of ten steps on the same batch, each before its update, of recipe R
    final.R.P           parameter P after the ten steps of recipe R
    gradient_norms.R    (10): global 2-norms before clipping, of the recipes that clip

The metadata holds loss, losses.R and gradient_norms.R once more, as float64 text; lists with commas.

Recipes. Weight decay applies to matrices (two dimensions: also the token and position tables), not to
biases and norms.

    mlp  sgd             lr 0.1, momentum 0.9, weight decay 0.01 (added to the gradient)
    mlp  nesterov        the same with Nesterov momentum
    gpt  adamw           lr 0.01, betas 0.9 and 0.999, eps 1e-8, weight decay 0.1 (decoupled)
    gpt  adamw_clip      the same; gradients scaled to the global norm 0.5 when it is larger
    gpt  sgd_clip        lr 0.1, momentum 0.9, no weight decay; clipped likewise
                         (final.R.P is stored for mlp and for gpt adamw)

Rows C .. 2 C of blockK.attn.qkv.bias (of the keys) have a gradient of 0 by construction: softmax does
not see a constant. AdamW divides the rounding noise there by itself, so that in float32 these rows move
by up to 0.02 in ten steps, with no effect on any loss: leave them out of a comparison of final.adamw.
PyTorch in float32 differs from the rest of the numbers here by at most 1e-6.

The scale of clipping is 0.5 / (norm + 1e-6), as PyTorch has it: 2e-6 less than 0.5 / norm at norm 0.5.

mlp: linear1 (12 -> 16), relu, linear2 (16 -> 16), relu, linear3 (16 -> 5).
    linearK.weight (outputs, inputs), linearK.bias

gpt: vocabulary 17, width C = 16, 2 heads, 2 layers, context 8; pre-norm, LayerNorm eps 1e-5, GELU in its
tanh form, softmax of q k / sqrt(C / heads) over the past, no dropout, head tied to the token table.
    embedding.weight (17, C), embedding.positions (8, C)
    blockK.norm1.weight, .bias (C)          K = 0, 1
    blockK.attn.qkv.weight (3 C, C), .bias  rows: q, then k, then v; head h has C / 2 rows of each
    blockK.attn.proj.weight (C, C), .bias
    blockK.norm2.weight, .bias
    blockK.mlp.fc.weight (4 C, C), .bias
    blockK.mlp.proj.weight (C, 4 C), .bias
    norm.weight, norm.bias
"""

import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F

STEPS = 10
CLIP_NORM = 0.5
VOCABULARY, WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 17, 16, 2, 2, 8, 3


def random_normal(generator, shape, scale, mean=0.0):
    """Normal numbers that are float32 numbers, as float64."""
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale + mean
    return values.to(torch.float32).to(torch.float64)


def initial_parameters(generator, shapes):
    """Large enough that every part of the model matters: norms and biases differ from 1 and 0."""
    parameters = {}
    for name, shape in shapes.items():
        if len(shape) == 2:
            parameters[name] = random_normal(generator, shape, 1 / math.sqrt(shape[1]))
        elif "norm" in name and name.endswith("weight"):
            parameters[name] = random_normal(generator, shape, 0.2, mean=1.0)
        else:
            parameters[name] = random_normal(generator, shape, 0.1)
    return parameters


def mlp_shapes():
    shapes = {}
    for i, (inputs, outputs) in enumerate([(12, 16), (16, 16), (16, 5)], start=1):
        shapes[f"linear{i}.weight"] = (outputs, inputs)
        shapes[f"linear{i}.bias"] = (outputs,)
    return shapes


def mlp(p, x):
    x = F.relu(F.linear(x, p["linear1.weight"], p["linear1.bias"]))
    x = F.relu(F.linear(x, p["linear2.weight"], p["linear2.bias"]))
    return F.linear(x, p["linear3.weight"], p["linear3.bias"])


def gpt_shapes():
    c = WIDTH
    shapes = {"embedding.weight": (VOCABULARY, c), "embedding.positions": (CONTEXT, c)}
    for k in range(LAYERS):
        for layer, outputs, inputs in [
            ("norm1", c, None),
            ("attn.qkv", 3 * c, c),
            ("attn.proj", c, c),
            ("norm2", c, None),
            ("mlp.fc", 4 * c, c),
            ("mlp.proj", c, 4 * c),
        ]:
            shapes[f"block{k}.{layer}.weight"] = (outputs, inputs) if inputs else (outputs,)
            shapes[f"block{k}.{layer}.bias"] = (outputs,)
    shapes["norm.weight"] = (c,)
    shapes["norm.bias"] = (c,)
    return shapes


def attention(p, prefix, x):
    b, t, c = x.shape
    qkv = F.linear(x, p[prefix + "qkv.weight"], p[prefix + "qkv.bias"])
    q, k, v = (part.view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in qkv.split(c, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(c // HEADS)
    future = torch.ones(t, t, dtype=torch.bool).triu(diagonal=1)
    weights = torch.softmax(scores.masked_fill(future, -math.inf), dim=-1)
    joined = (weights @ v).transpose(1, 2).reshape(b, t, c)
    return F.linear(joined, p[prefix + "proj.weight"], p[prefix + "proj.bias"])


def gpt(p, tokens):
    def norm(name, x):
        return F.layer_norm(x, (WIDTH,), p[name + ".weight"], p[name + ".bias"], eps=1e-5)

    x = p["embedding.weight"][tokens] + p["embedding.positions"][: tokens.shape[1]]
    for k in range(LAYERS):
        block = f"block{k}."
        x = x + attention(p, block + "attn.", norm(block + "norm1", x))
        h = F.linear(norm(block + "norm2", x), p[block + "mlp.fc.weight"], p[block + "mlp.fc.bias"])
        h = F.gelu(h, approximate="tanh")
        x = x + F.linear(h, p[block + "mlp.proj.weight"], p[block + "mlp.proj.bias"])
    return norm("norm", x) @ p["embedding.weight"].T


def loss_of(logits, target):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def decay_groups(parameters, weight_decay):
    matrices = [p for p in parameters.values() if p.dim() == 2]
    others = [p for p in parameters.values() if p.dim() != 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def train(model, initial, x, target, make_optimizer, clip):
    """Returns the losses before each step, the norms of the gradients and the final parameters."""
    parameters = {name: value.clone().requires_grad_() for name, value in initial.items()}
    optimizer = make_optimizer(parameters)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(parameters, x), target)
        loss.backward()
        losses.append(loss.item())
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP_NORM).item())
        optimizer.step()
    return losses, norms, parameters


def text(values):
    return ",".join(repr(value) for value in values)


def golden(model, shapes, x, target, recipes, generator):
    """Tensors and metadata of one file. A recipe is (name, make_optimizer, clip, store_final)."""
    initial = initial_parameters(generator, shapes)
    parameters = {name: value.clone().requires_grad_() for name, value in initial.items()}
    logits = model(parameters, x)
    loss = loss_of(logits, target)
    loss.backward()
    tensors = {"input": x, "target": target, "logits": logits, "loss": loss}
    metadata = {"loss": repr(loss.item())}
    for name in shapes:
        tensors["initial." + name] = initial[name]
        tensors["gradient." + name] = parameters[name].grad
    for recipe, make_optimizer, clip, store_final in recipes:
        losses, norms, final = train(model, initial, x, target, make_optimizer, clip)
        tensors["losses." + recipe] = torch.tensor(losses, dtype=torch.float64)
        metadata["losses." + recipe] = text(losses)
        if clip:
            tensors["gradient_norms." + recipe] = torch.tensor(norms, dtype=torch.float64)
            metadata["gradient_norms." + recipe] = text(norms)
        if store_final:
            tensors.update({f"final.{recipe}.{name}": value for name, value in final.items()})
    return tensors, metadata


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        is_float = tensor.is_floating_point()
        flat = tensor.detach().reshape(-1).to(torch.float32 if is_float else torch.int32).tolist()
        packed = struct.pack(f"<{len(flat)}{'f' if is_float else 'i'}", *flat)
        header[name] = {
            "dtype": "F32" if is_float else "I32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(packed)],
        }
        data += packed
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(8 + len(head)) % 64)
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def make_mlp(folder):
    generator = torch.Generator().manual_seed(1)
    x = random_normal(generator, (7, 12), 1.0)
    target = torch.randint(0, 5, (7,), generator=generator)

    def sgd(nesterov):
        return lambda parameters: torch.optim.SGD(
            decay_groups(parameters, 0.01), lr=0.1, momentum=0.9, nesterov=nesterov
        )

    recipes = [("sgd", sgd(False), False, True), ("nesterov", sgd(True), False, True)]
    write_safetensors(folder / "mlp.safetensors", *golden(mlp, mlp_shapes(), x, target, recipes, generator))


def make_gpt(folder):
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(0, VOCABULARY, (BATCH, CONTEXT), generator=generator)
    target = torch.randint(0, VOCABULARY, (BATCH, CONTEXT), generator=generator)

    def adamw(parameters):
        return torch.optim.AdamW(decay_groups(parameters, 0.1), lr=0.01, betas=(0.9, 0.999), eps=1e-8)

    def sgd(parameters):
        return torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9)

    recipes = [
        ("adamw", adamw, False, True),
        ("adamw_clip", adamw, True, False),
        ("sgd_clip", sgd, True, False),
    ]
    write_safetensors(folder / "gpt.safetensors", *golden(gpt, gpt_shapes(), x, target, recipes, generator))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    here = pathlib.Path(__file__).resolve().parent
    make_mlp(here)
    make_gpt(here)
