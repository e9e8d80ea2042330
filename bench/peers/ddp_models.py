"""The models of ddp_step.py: each with its loss and a batch of random data."""

import torch
from torch import nn
from torch.nn import functional


class Classifier(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, images, labels):
        return functional.cross_entropy(self.layers(images), labels)


def mlp():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 14 * 14, 10),
    )


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


def resnet18():
    """With the stem for ImageNet: 7x7 with stride 2, then max pooling."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for stage, outputs in enumerate([64, 128, 256, 512]):
        for block in range(2):
            layers.append(ResidualBlock(width, outputs, 2 if stage > 0 and block == 0 else 1))
            width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


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


def images(batch, shape):
    return torch.rand(batch, *shape), torch.randint(0, 10, (batch,))


def tokens(batch, context, vocabulary):
    all_of_them = torch.randint(0, vocabulary, (batch, context + 1))
    return all_of_them[:, :-1].contiguous(), all_of_them[:, 1:].contiguous()


def make(name, channels_last):
    """The model, a function that makes a batch, and the optimizer's class with its options."""
    sgd = (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9})
    adamw = (torch.optim.AdamW, {"lr": 1e-4})
    if name == "mlp":
        return Classifier(mlp()), lambda: images(64, (784,)), sgd
    if name in ("cnn", "resnet18"):
        layout = torch.channels_last if channels_last else torch.contiguous_format
        model = Classifier(cnn() if name == "cnn" else resnet18())
        shape = (64, (1, 28, 28)) if name == "cnn" else (16, (3, 32, 32))

        def batch():
            x, y = images(*shape)
            return x.to(memory_format=layout), y

        return model.to(memory_format=layout), batch, sgd
    if name == "gpt":
        return Gpt(256, 128, 4, 256, 4), lambda: tokens(8, 128, 256), adamw
    if name == "gpt2_124m":
        return Gpt(50257, 64, 12, 768, 12), lambda: tokens(4, 64, 50257), adamw
    raise SystemExit(f"no model {name}")
