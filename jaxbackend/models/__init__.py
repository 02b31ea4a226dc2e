"""The model families, one file each. `build` makes the model that a workload names."""

from flax import nnx

from compare.base.workloads import ModelSpec
from jaxbackend.models.convnext import ConvNeXt
from jaxbackend.models.mobilenet import MobileNetV2
from jaxbackend.models.resnet import ResNet
from jaxbackend.models.simple import SimpleCNN
from jaxbackend.models.staged import StagedCNN
from jaxbackend.models.unet import UNet
from jaxbackend.models.vgg import VGG
from jaxbackend.precision import Policy

FAMILIES = {
    "simple": SimpleCNN,
    "staged": StagedCNN,
    "resnet": ResNet,
    "convnext": ConvNeXt,
    "vgg": VGG,
    "mobilenet": MobileNetV2,
    "unet": UNet,
}


def build(spec: ModelSpec, policy: Policy) -> nnx.Module:
    """Return the model of a workload. Its values are assigned later."""
    return FAMILIES[spec.family](spec.image, spec.classes, policy=policy, **spec.arguments)
