"""The networks of `plain_torch.py`: torchvision's, and those it has not, as public examples write them.

Dropout and stochastic depth are off, as samestep's workloads have it.
"""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

# By workload, torchvision's name and what is not its default.
OF_TORCHVISION: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "resnet50": ("resnet50", {}),
    "vgg16": ("vgg16", {"dropout": 0.0}),
    "mobilenet-v2": ("mobilenet_v2", {"dropout": 0.0}),
    "convnext-tiny": ("convnext_tiny", {"stochastic_depth_prob": 0.0}),
}


def conv_norm(inputs: int, width: int, size: int = 3, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, width, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(width)]


def cifar_net(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [*conv_norm(inputs, width), nn.ReLU()]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Basic(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv_norm(inputs, width, stride=stride), nn.ReLU(), *conv_norm(width, width))
        same = stride == 1 and inputs == width
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(inputs, width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.shortcut(x) + self.body(x))


def cifar_resnet18(classes: int) -> nn.Module:
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512)):
        for index in range(2):
            blocks.append(Basic(inputs, width, 2 if stage and index == 0 else 1))
            inputs = width
    stem = [*conv_norm(3, 64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class UNet(nn.Module):
    def __init__(self, classes: int, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        self.down, self.up, self.enlarge = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for inputs, width in zip((3, *widths), widths, strict=False):
            self.down.append(self._double(inputs, width))
        for width in widths[-2::-1]:
            self.enlarge.append(nn.ConvTranspose2d(2 * width, width, 2, stride=2))
            self.up.append(self._double(2 * width, width))
        self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = list[torch.Tensor]()
        for index, convs in enumerate(self.down):
            if index:
                skips.append(x)
                x = self.pool(x)
            x = convs(x)
        for enlarge, convs in zip(self.enlarge, self.up, strict=True):
            x = convs(torch.cat([skips.pop(), enlarge(x)], 1))
        return self.last(x)

    @staticmethod
    def _double(inputs: int, width: int) -> nn.Module:
        return nn.Sequential(*conv_norm(inputs, width), nn.ReLU(), *conv_norm(width, width), nn.ReLU())


OWN = {"cifar-cnn": cifar_net, "cifar-resnet18": cifar_resnet18, "unet": UNet}


def network(workload: str, classes: int) -> nn.Module:
    if workload in OWN:
        return OWN[workload](classes)
    try:
        from torchvision import models  # type: ignore[import-not-found] -- not one of samestep's packages
    except ImportError:
        sys.exit(f"--workload {workload} is torchvision's, which is not installed; allowed here: {', '.join(OWN)}")
    name, options = OF_TORCHVISION[workload]
    return getattr(models, name)(**options)
