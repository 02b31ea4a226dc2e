"""Residual networks in PyTorch, with torchvision's layer order and names.

Beside it: `resnet_linen.py` for `model` and `deep`, `resnet50_nnx.py` for `resnet50`.
"""

from collections.abc import Sequence

import torch
from torch import nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the input, projected where its shape changes."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activations, height and width divided by the stride and rounded up."""
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, strided 3x3 and 1x1 convolutions, and the input, projected where its shape changes."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activations, height and width divided by the stride and rounded up."""
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """Strided stem, max-pool, stages `layer1`, `layer2` and so on, global average pool, fully connected layer."""

    def __init__(
        self, block: type[BasicBlock | Bottleneck], depths: Sequence[int], width: int, classes: int, stem: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, stem, stride=2, padding=stem // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = width
        self.stages = [f"layer{number}" for number, _ in enumerate(depths, start=1)]
        for stage, (name, depth) in enumerate(zip(self.stages, depths, strict=True)):
            outputs = width * 2**stage * block.expansion
            blocks = []
            for index in range(depth):
                stride = 2 if stage and index == 0 else 1
                downsample = None
                if stride != 1 or inputs != outputs:
                    convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
                    downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))
                blocks.append(block(inputs, width * 2**stage, stride, downsample))
                inputs = outputs
            self.add_module(name, nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def model(zero_init: bool = True, depths: Sequence[int] = (2, 2), width: int = 8, classes: int = 10) -> nn.Module:
    """Return a small ResNet of basic blocks. With `zero_init`, blocks start as the identity (Goyal et al. 2017)."""
    made = ResNet(BasicBlock, depths, width, classes, stem=3)
    for module in made.modules():
        if zero_init and isinstance(module, BasicBlock):
            nn.init.zeros_(module.bn2.weight)
    return made


def deep(width: int = 8, classes: int = 10) -> nn.Module:
    """Return a narrow ResNet of 160 layers: stem, 79 blocks of two convolutions, fully connected layer."""
    return model(depths=(26, 27, 26), width=width, classes=classes)


def resnet50(width: int = 64, classes: int = 1000, depths: Sequence[int] = (3, 4, 6, 3)) -> nn.Module:
    """Return ResNet-50 v1.5: torchvision's and timm's `resnet50`, which may be named in its place."""
    return ResNet(Bottleneck, depths, width, classes, stem=7)
