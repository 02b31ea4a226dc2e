"""The torch side of pairs of many kinds. Each factory has its partner of the same name in `flax_side.py`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Power(nn.Module):
    """A mean of learned powers."""

    def __init__(self) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.full((1,), 2.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a row for each image."""
        return x.clamp(min=1e-4).pow(self.exponent).mean((2, 3)).pow(1 / self.exponent)


class Simple(nn.Module):
    """A convolution, a middle part by kind, and a dense layer."""

    even: torch.Tensor

    def __init__(self, kind: str, option: Any = None) -> None:
        super().__init__()
        self.kind, self.option = kind, option
        self.register_buffer("even", torch.tensor([0.3, 0.7, 1.1]).view(1, 3, 1, 1), persistent=False)
        self.conv = nn.Conv2d(4 if kind == "coordinates" else 3, 6, 3, 2, 1)
        widths = {"flat_norm": 384, "flat_gate": 384, "joined": 390, "to_image": 5, "pooled": 7}
        if kind == "power":
            self.pool = Power()
        elif kind == "flat_norm":
            self.norm = nn.LayerNorm(384)
        elif kind == "flat_gate":
            self.gate = nn.Linear(384, 384)
        elif kind == "to_image":
            self.spread, self.up = nn.Linear(384, 48), nn.ConvTranspose2d(3, 5, 2, 2)
        elif kind == "hard":
            self.gate = nn.Linear(6, 6)
        elif kind == "dropped":
            self.drop = nn.Dropout(0.2)
        elif kind == "pooled":
            self.shrink, self.mix = nn.AvgPool2d(3, 2, 1, count_include_pad=bool(option)), nn.Conv2d(6, 7, 1)
        self.out = nn.Linear(widths.get(kind, 6), 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        if self.kind == "coordinates":
            rows = torch.linspace(-1, 1, x.shape[2]).view(1, 1, -1, 1).expand(len(x), 1, *x.shape[2:])
            x = torch.cat([x / self.even, rows.to(x.dtype)], 1)
        return self.out(self._middle(torch.relu(self.conv(x))))

    def _middle(self, x: torch.Tensor) -> torch.Tensor:
        match self.kind:
            case "power":
                return self.pool(x)
            case "ceiling":
                return x.clamp(max=0.9).mean((2, 3))
            case "flat_norm":
                return self.norm(x.flatten(1))
            case "flat_gate":
                return x.flatten(1) * torch.sigmoid(self.gate(x.flatten(1)))
            case "joined":
                return torch.cat([x.flatten(1), x.mean((2, 3))], 1)
            case "to_image":
                return torch.relu(self.up(self.spread(x.flatten(1)).view(-1, 3, 4, 4))).mean((2, 3))
            case "hard":
                return F.hardswish(x.mean((2, 3)) * F.hardsigmoid(self.gate(x.mean((2, 3)))))
            case "dropped":
                return self.drop(x.mean((2, 3)))
            case "stopped":
                return x.detach().mean((2, 3)) if self.option else x.mean((2, 3))
            case "pooled":
                return torch.relu(self.mix(self.shrink(x))).mean((2, 3))
            case _:
                return x.mean((2, 3))


class Scaled(nn.Module):
    """Scales every pixel of images [N, H, W, C] by its channel's part of the whole."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scaled images."""
        size = x.abs().sum((1, 2), keepdim=True)
        return x + x * size / (size.mean(-1, keepdim=True) + 1e-3) * self.gain + self.shift


class Response(nn.Module):
    """A response norm of an input with as many rows as columns and channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scaled, self.out = nn.Conv2d(3, 8, 3, 2, 1), Scaled(8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.out(self.scaled(torch.relu(self.conv(x)).permute(0, 2, 3, 1)).mean((1, 2)))


class PerImage(nn.Module):
    """An instance norm that is a function, with a scale and no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, width, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images with moments of their own."""
        return F.instance_norm(x) * self.gamma


class Residual(nn.Module):
    """A block with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(6, 6, 3, padding=1), nn.GroupNorm(2, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images and what the block adds."""
        return torch.relu(x + self.norm(self.conv(x)))


class Functions(nn.Module):
    """A model with functions in place of layers, and with its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(6, 3, 3, 3) / 5), nn.Parameter(torch.zeros(6))
        self.c, self.d = nn.Parameter(torch.randn(8, 6, 3, 3) / 7), nn.Parameter(torch.zeros(8))
        self.e, self.f = nn.Parameter(torch.randn(10, 8) / 3), nn.Parameter(torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = F.relu(F.conv2d(x, self.a, self.b, stride=2, padding=1))
        return F.linear(F.relu(F.conv2d(x, self.c, self.d, padding=1)).mean((2, 3)), self.e, self.f)


class Dense(nn.Module):
    """Two steps of a densely connected network, with the new channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(7)])
        self.convs = nn.ModuleList([nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(7, 3, 3, padding=1)])
        self.mix, self.out = nn.Conv2d(10, 5, 1), nn.Linear(5, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(torch.relu(norm(x)))], 1)
        return self.out(torch.relu(self.mix(x)).mean((2, 3)))


def simple(kind: str, option: Any = None) -> nn.Module:
    """Return the model with this middle part."""
    return Simple(kind, option)


def response() -> nn.Module:
    """Return the response norm."""
    return Response()


def normed(kind: str) -> nn.Module:
    """Return the model with this norm."""
    norm = PerImage if kind == "instance" else nn.BatchNorm2d
    convs = nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.Conv2d(6, 8, 3, 2, 1, bias=False)
    parts = [convs[0], norm(6), nn.ReLU(), convs[1], norm(8), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def lifted() -> nn.Module:
    """Return the model of two blocks."""
    blocks = nn.Conv2d(3, 6, 3, 2, 1), Residual(), Residual()
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10))


def functions() -> nn.Module:
    """Return the model of functions."""
    return Functions()


def dense() -> nn.Module:
    """Return the densely connected model."""
    return Dense()


made = Simple("mean")


class Attended(nn.Module):
    """Tokens that attend to each other by torch's own attention."""

    def __init__(self, rows_first: bool = True) -> None:
        super().__init__()
        self.rows_first = rows_first
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(4)])
        self.attentions = nn.ModuleList(
            [nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=rows_first) for _ in range(2)]
        )
        self.wide = nn.ModuleList([nn.Linear(8, 16) for _ in range(2)])
        self.narrow = nn.ModuleList([nn.Linear(16, 8) for _ in range(2)])
        self.out = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x if self.rows_first else x.transpose(0, 1)
        for index in range(2):
            y = self.norms[2 * index](x)
            x = x + self.attentions[index](y, y, y, need_weights=False)[0]
            x = x + self.narrow[index](torch.relu(self.wide[index](self.norms[2 * index + 1](x))))
        return self.out(x.mean(1 if self.rows_first else 0))


def attended(rows_first: bool = True) -> nn.Module:
    """Return the model, with the images on its first axis or on its second."""
    return Attended(rows_first)


class Normalised(nn.Module):
    """Layers under torch's weight norm, the new one or the old one."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.first, self.second = norm(nn.Conv2d(3, 6, 3, 2, 1)), norm(nn.Conv2d(6, 8, 3, padding=1))
        self.side, self.out = nn.Conv2d(6, 8, 1, bias=False), norm(nn.Linear(8, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = torch.relu(self.first(x))
        return self.out((torch.relu(self.second(x)) + self.side(x)).mean((2, 3)))


def normalised(old: bool = False) -> nn.Module:
    """Return the model."""
    new = nn.utils.parametrizations.weight_norm
    return Normalised(nn.utils.weight_norm if old else new)


class NormAndReLU(nn.GroupNorm):
    """A group norm that ends with a ReLU, as timm has them."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return normalised images without negative values."""
        return F.relu(super().forward(input))


class Scale(nn.Module):
    """Scales channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scaled images."""
        return x * self.gamma


class Library(nn.Module):
    """A norm with a ReLU, scales in their own modules, a norm of rows, and an uncalled layer, as in libraries."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.scales = nn.Conv2d(3, 4, 3, 2, 1), NormAndReLU(2, 4), nn.ModuleList()
        self.middle, self.last = nn.Conv2d(4, 6, 1), nn.Conv2d(6, 5, 1)
        self.scales.extend(Scale(width) for width in (4, 6, 5))
        self.rows, self.row_norm, self.out = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.scales[0](self.norm(self.conv(x)))
        x = self.scales[1](torch.tanh(self.middle(x)))
        x = self.scales[2](torch.tanh(self.last(x)))
        x = self.rows(x.flatten(2).transpose(1, 2))
        x = self.row_norm(x.flatten(0, 1)).reshape_as(x)
        return F.linear(x.mean(1), self.out.weight, self.out.bias)


def library() -> nn.Module:
    """Return the model."""
    return Library()
