"""Models as people write them, and factories of them."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, classes=5, widths=(4, 6)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        )
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layers = nn.ModuleList()
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for index in range(2):
                self.layers.append(BasicBlock(inputs, width, stride=2 if stage and not index else 1))
                inputs = width
        self.average = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.pool(self.stem(x))
        for layer in self.layers:
            x = layer(x)
        return self.fc(torch.flatten(self.average(x), 1))


class Flattened(nn.Module):
    """A convolution with `same` padding, GELU by tanh, dropout, and a dense layer over a flattened image."""

    def __init__(self, classes=5, size=8):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, (3, 2), padding="same")
        self.dropout = nn.Dropout(0.5)
        self.hidden = nn.Linear(4 * (size // 2) ** 2, 6)
        self.out = nn.Linear(6, classes, bias=False)

    def forward(self, x):
        x = F.max_pool2d(F.gelu(self.conv(x), approximate="tanh"), 2)
        x = x.view(x.size(0), -1)
        return self.out(self.dropout(F.relu(self.hidden(x))))


class Mixed(nn.Module):
    """Grouped, depthwise and transposed convolutions, group norm, layer norm on channels-last images, SiLU, cat."""

    def __init__(self, classes=5):
        super().__init__()
        self.grouped = nn.Conv2d(3, 6, 3, groups=3, padding=1, dilation=1)
        self.norm = nn.GroupNorm(2, 6)
        self.depthwise = nn.Conv2d(6, 6, 5, stride=2, padding=2, groups=6)
        self.layer_norm = nn.LayerNorm(6, eps=1e-6)
        self.expand = nn.Linear(6, 8)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.head = nn.Linear(10, classes)

    def forward(self, x):
        skip = F.silu(self.norm(self.grouped(x)))
        y = self.depthwise(skip).permute(0, 2, 3, 1)
        y = F.gelu(self.expand(self.layer_norm(y))).permute(0, 3, 1, 2)
        y = F.relu6(self.up(y))[:, :, : skip.shape[2], : skip.shape[3]]
        return self.head(torch.cat([skip, y], dim=1).mean(dim=[2, 3]))


class Scaled(nn.Module):
    """A residual block with a layer scale of its own, and layer norm that keeps images channels first."""

    def __init__(self, features):
        super().__init__()
        self.depthwise = nn.Conv2d(features, features, 3, padding=1, groups=features)
        self.norm = LayerNorm2d(features)
        self.gamma = nn.Parameter(0.1 * torch.ones(features, 1, 1))

    def forward(self, x):
        return x + self.gamma * self.norm(self.depthwise(x))


class LayerNorm2d(nn.LayerNorm):
    def forward(self, input):
        x = input.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Remembering(nn.Module):
    """Keeps a mean of its images, which torch does not save with the model."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 5)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.ones(3), persistent=False)

    def forward(self, x):
        x = x.mean((2, 3))
        if self.training:
            with torch.no_grad():
                self.seen.lerp_(x.mean(0).to(self.seen.dtype), 0.1)
        return self.head(x - self.seen)


def remembering():
    return Remembering()


class Recurring(nn.Module):
    """One convolution called twice, batch norm of features, a head that shares its weight with an embedding."""

    def __init__(self, classes=5, features=4):
        super().__init__()
        self.stem = nn.Conv2d(3, features, 1)
        self.block = Scaled(features)
        self.again = nn.Conv2d(features, features, 3, padding=1)
        self.norm = nn.BatchNorm1d(features)
        self.prototypes = nn.Embedding(classes, features)
        self.head = nn.Linear(features, classes, bias=False)
        self.head.weight = self.prototypes.weight
        self.spare = nn.Linear(2, 2)

    def forward(self, x):
        x = self.block(self.stem(x))
        x = self.again(F.relu(self.again(x)))
        x = self.norm(x.mean((2, 3)))
        return self.head(x) - 0.1 * self.prototypes(torch.arange(5)).sum(1)


class Unusual(nn.Module):
    """Layer norm over whole images, a list of parameters, an average of all batches, a block that changes its input."""

    def __init__(self, classes=5, size=8):
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 1)
        self.norm = nn.LayerNorm([4, size, size])
        self.cumulative = nn.BatchNorm2d(4, momentum=None)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(1, 4))])
        self.changing = Changing()
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        x = self.changing(self.cumulative(self.norm(self.patches(x))))
        x = x.mean((2, 3))
        for scale in self.scales:
            x = x * scale
        return self.head(x)


class Changing(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(1))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.slope * self.relu(x)


def unusual(size=8):
    return Unusual(size=size)


def resnet(classes=5, widths=(4, 6)):
    return ResNet(classes, widths)


def flattened(size=8):
    return Flattened(size=size)


def mixed():
    return Mixed()


def recurring():
    return Recurring()


class Plain(nn.Module):
    """Biased convolutions behind which a mean gives every pixel the same gradient."""

    def __init__(self, scale):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 16, 3, padding=1)
        self.c = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)
        self.scale = scale

    def forward(self, x):
        x = F.relu(self.c(F.relu(self.b(F.relu(self.a(x))))))
        return self.head(self.scale * F.adaptive_avg_pool2d(x, 1).flatten(1))


class SqueezeExcite(nn.Module):
    """As torch's users write it, with 1x1 convolutions."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.fc1, self.fc2 = nn.Conv2d(8, 1, 1), nn.Conv2d(1, 8, 1)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = F.relu(self.conv(x))
        squeezed = F.adaptive_avg_pool2d(x, 1)
        x = x * torch.sigmoid(self.fc2(F.relu(self.fc1(squeezed))))
        return self.head(x.mean((2, 3)))


class Prototypes(nn.Module):
    """A head that is an embedding of the classes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.classes = nn.Embedding(10, 16)

    def forward(self, x):
        return F.relu(self.conv(x)).mean((2, 3)) @ self.classes(torch.arange(10)).T


class Exits(Plain):
    def forward(self, x):
        raise SystemExit(5)


class Misspelt(Plain):
    def forward(self, x):
        return self.get_parameter("haed.weight") @ super().forward(x)


def plain(scale=1.0):
    return Plain(scale)


def squeezed():
    return SqueezeExcite()


def prototypes():
    return Prototypes()


def exits():
    return Exits(1.0)


def misspelt():
    return Misspelt(1.0)


plain_of_a_half = partial(plain, 0.5)


class Attended(nn.Module):
    def __init__(self, kind, classes):
        super().__init__()
        self.kind, self.qkv, self.proj = kind, nn.Linear(12, 96), nn.Linear(32, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        count = x.shape[0]
        tokens = x.permute(0, 2, 3, 1).reshape(count, 16, 12)
        q, k, v = self.qkv(tokens).reshape(count, 16, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        if self.kind == "fused":
            y = F.scaled_dot_product_attention(q, k, v)
        elif self.kind == "early":
            y = ((q * 8**-0.25) @ (8**-0.25 * k).mT).softmax(-1) @ v
        else:
            y = ((q @ k.mT) / torch.sqrt(torch.tensor(8.0))).softmax(-1) @ v
        return self.head(self.proj(y.transpose(1, 2).reshape(count, 16, 32)).mean(1))


def attended(kind, classes=5):
    return Attended(kind, classes)
