"""Factories that samestep has to refuse or to take with a note, each named after what is wrong with it.

Both sides' children import this file: frameworks are imported where they are used only.
"""

import os
import signal
import sys
from typing import Any

not_callable = {"a": "table"}


def raises() -> Any:
    raise FileNotFoundError("no checkpoint at /models/best.pt\nand a second line")


def is_killed() -> Any:
    """Die as after a fault in a C library."""
    os.kill(os.getpid(), signal.SIGSEGV)


def exits() -> Any:
    sys.exit("usage: train.py CONFIG")


def needs_width(width: int, classes: int = 10) -> Any:
    return returns_text() * width


def returns_text() -> Any:
    return "a model"


def returns_nothing() -> Any:
    """Build the model and forget to return it."""
    good_torch()


def returns_class() -> Any:
    """Return the class in place of a model."""
    from torch import nn

    return nn.Identity


def good_torch(classes: int = 10) -> Any:
    from torch import nn

    convolution = nn.Conv2d(3, 4, 3, padding=1)
    return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def good_linen(classes: int = 10) -> Any:
    import flax.linen as nn

    def mean(x: Any) -> Any:
        return x.mean(axis=(1, 2))

    return nn.Sequential([nn.Conv(4, (3, 3)), nn.relu, mean, nn.Dense(classes)])


def prints() -> Any:
    print("building the model")  # noqa: T201  what users' factories do
    return good_torch()


def imports_torch() -> Any:
    """Build a Flax model beside a torch model, as after a port."""
    import torch  # noqa: F401  the import is the point

    return good_linen()


def seven_classes() -> Any:
    return good_torch(classes=7)


def nan_weights() -> Any:
    from torch import nn

    model = good_torch()
    nn.init.constant_(model[4].bias, float("nan"))
    return model


def nan_linen() -> Any:
    import flax.linen as nn

    module = good_linen()
    module.layers[0].bias_init = nn.initializers.constant(float("nan"))
    return module


def wrong_channels() -> Any:
    """Build a model for grey images, which fails at the first colour one."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


def two_outputs() -> Any:
    """Return logits and features, as a model with an auxiliary head does."""
    from torch import nn

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = good_torch()

        def forward(self, x: Any) -> Any:
            return self.model(x), x

    return Both()
