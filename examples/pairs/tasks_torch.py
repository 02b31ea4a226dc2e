"""Small PyTorch models for tasks other than classification; `tasks_linen.py` has the same models in Flax."""

import torch
from torch import nn
from torch.nn import functional as F


def segmenter(classes: int = 4, width: int = 8) -> nn.Module:
    """Return a model for `--loss cross-entropy` with a class a pixel."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, width, 2, stride=2),
        nn.ReLU(),
        nn.Conv2d(width, classes, 1),
    )


class Upscaler(nn.Module):
    """Return images of twice the size [N, C, 2H, 2W]."""

    def __init__(self, width: int, mode: str) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.mode = mode

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        return self.last(F.interpolate(self.first(images).relu(), scale_factor=2, mode=self.mode))


def upscaler(width: int = 8, mode: str = "nearest") -> nn.Module:
    """Return a model for `--loss l1`."""
    return Upscaler(width, mode)


class Detector(nn.Module):
    """Return one logit for each image [N, 1]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        return self.head(F.gelu(self.conv(images)).mean((2, 3)))


def detector(width: int = 8) -> nn.Module:
    """Return a model for `--loss binary-cross-entropy`."""
    return Detector(width)


def autoencoder(width: int = 8) -> nn.Module:
    """Return a model for `--loss mse,target=input`."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 2, stride=2)
    )


class TwoHeads(nn.Module):
    """Return classes [N, classes] and, from an earlier layer, values [N, 3]."""

    def __init__(self, classes: int, width: int, as_dict: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.side, self.main = nn.Linear(width, 3), nn.Linear(2 * width, classes)
        self.as_dict = as_dict

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | dict[str, torch.Tensor]:
        """Return the outputs."""
        x = self.first(images).relu()
        side = self.side(x.mean((2, 3)))
        main = self.main(self.second(x).relu().mean((2, 3)))
        return {"main": main, "side": side} if self.as_dict else (main, side)


def two_heads(classes: int = 4, width: int = 8, as_dict: bool = False) -> nn.Module:
    """Return a model for a loss of each output: `--loss 0=cross-entropy --loss 1=huber,weight=0.4`."""
    return TwoHeads(classes, width, as_dict)


class Denoiser(nn.Module):
    """Return noise [N, C, H, W] from an image and a time step."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.embedding, self.time = nn.Embedding(steps, width), nn.Linear(width, width)
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        time = F.silu(self.time(self.embedding(t)))
        return self.last(F.silu(self.first(image) + time[:, :, None, None]))


def denoiser(width: int = 8, steps: int = 100) -> nn.Module:
    """Return a model for `--input image=8x8x3 --input t=int:100 --loss mse`."""
    return Denoiser(width, steps)


def signals(classes: int = 4, width: int = 8) -> nn.Module:
    """Return a model for `--input signal=32x2`."""
    return nn.Sequential(
        nn.Conv1d(2, width, 3, padding=1),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Conv1d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


def volumes(classes: int = 4, width: int = 8) -> nn.Module:
    """Return a model for `--input volume=6x8x8x2`."""
    return nn.Sequential(
        nn.Conv3d(2, width, 3, padding=1),
        nn.BatchNorm3d(width),
        nn.ReLU(),
        nn.Conv3d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


def focal_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the focal loss with a focus of 2 (Lin et al. 2017)."""
    log = F.log_softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
    return -((1 - log.exp()) ** 2 * log).mean()
