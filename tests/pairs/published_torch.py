"""Published models of torchvision and timm. Their flax side is `published_flax.py`.

The libraries are imported when a factory is called, because samestep does not need them.
"""

import importlib
from typing import Any

from torch import nn


def vision(name: str, classes: int = 10, **options: Any) -> nn.Module:
    """Return a model of torchvision without its weights."""
    models = importlib.import_module("torchvision.models")
    return getattr(models, name)(num_classes=classes, **options)


def small_vgg(name: str = "vgg11_bn", classes: int = 10, width: int = 64) -> nn.Module:
    """Return torchvision's VGG with a narrow head, as people write it for small images."""
    models = importlib.import_module("torchvision.models")
    model = getattr(models, name)(num_classes=classes)
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier = nn.Sequential(
        nn.Linear(2048, width), nn.ReLU(True), nn.Dropout(), nn.Linear(width, width), nn.ReLU(True), nn.Dropout(),
        nn.Linear(width, classes),
    )  # fmt: skip
    return model


def images(name: str, classes: int = 10, **options: Any) -> nn.Module:
    """Return a model of timm without its weights."""
    return importlib.import_module("timm").create_model(name, num_classes=classes, **options)
