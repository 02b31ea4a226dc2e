"""PyTorch models with contents of many kinds. `content_jax.py` has the same models in Flax."""

import torch
from torch import nn
from torch.nn import functional as F


class Pool(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def flagged():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Pool(), nn.Linear(8, 4))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(F.dropout(self.conv(x).relu(), 0.3, self.training).mean((2, 3)))


def dropping():
    return Dropping()


class Scaled(nn.Module):
    kernel: torch.Tensor

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
        self.register_buffer("mean", torch.full((1, 3, 1, 1), 0.25))
        self.register_buffer("std", torch.full((1, 3, 1, 1), 0.5))
        self.register_buffer("kernel", torch.tensor([1.0, 2.0, 1.0]) / 4)

    def forward(self, x):
        x = self.conv((x - self.mean) / self.std).relu()
        return self.head((x * self.kernel.sum()).mean((2, 3)))


def scaled():
    return Scaled()


class Collected(nn.Module):
    table: torch.Tensor

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
        self.register_buffer("table", torch.arange(8.0) / 8)

    def forward(self, x):
        return self.head((self.conv(x) + self.table[:, None, None]).relu().mean((2, 3)))


def collected():
    return Collected()


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.conv, self.heads = nn.LazyConv2d(8, 2, stride=2), heads
        self.q, self.k, self.v, self.out = (nn.LazyLinear(8) for _ in range(4))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        q, k, v = (layer(x).unflatten(2, (self.heads, -1)) for layer in (self.q, self.k, self.v))
        weights = (torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5).softmax(-1)
        x = x + self.out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))
        return self.head(x.mean(1))


def attention(heads=2):
    return Attention(heads)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.frozen, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.conv(self.conv(x).relu()).relu().mean((2, 3))
        return self.head(self.frozen(x).relu())


def tied():
    return Tied()
