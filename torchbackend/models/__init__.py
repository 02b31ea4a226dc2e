"""The model families, one file each. `build` makes the model that a workload names."""

from torch import nn

from compare.base.workloads import ModelSpec
from torchbackend.models.convnext import ConvNeXt
from torchbackend.models.mobilenet import MobileNetV2
from torchbackend.models.resnet import ResNet
from torchbackend.models.simple import SimpleCNN
from torchbackend.models.staged import StagedCNN
from torchbackend.models.unet import UNet
from torchbackend.models.vgg import VGG
from torchbackend.precision import Policy

FAMILIES = {
    "simple": SimpleCNN,
    "staged": StagedCNN,
    "resnet": ResNet,
    "convnext": ConvNeXt,
    "vgg": VGG,
    "mobilenet": MobileNetV2,
    "unet": UNet,
}


def build(spec: ModelSpec, policy: Policy) -> nn.Module:
    """Return the model of a workload. Its values are assigned later."""
    return FAMILIES[spec.family](spec.image, spec.classes, policy=policy, **spec.arguments)
