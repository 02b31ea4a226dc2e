"""The torch side of pairs in many styles. Each factory has its partner of the same name in `styles_flax.py`."""

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Body(nn.Module):
    """A stem, a middle part, a mean over positions and a dense layer."""

    def __init__(self, middle: nn.Module, width: int = 8, out: int | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.middle = middle
        self.head = nn.Linear(out or width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.middle(F.relu(self.stem(x))).mean((2, 3)))


class Residual(nn.Module):
    """Adds a part's result to its input, scaled by a learned number if asked."""

    def __init__(self, part: nn.Module, learned: bool = False) -> None:
        super().__init__()
        self.part = part
        self.alpha = nn.Parameter(torch.full((), 0.3)) if learned else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        y = self.part(x)
        return x + (y if self.alpha is None else self.alpha * y)


class ChannelNorm(nn.Module):
    """A layer norm over the channels of images [N, C, H, W]."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return normalised images."""
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(var + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


def lists() -> nn.Module:
    """Residual blocks in a list."""
    blocks = [Residual(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 1))) for _ in range(3)]
    return Body(nn.Sequential(*blocks))


def named() -> nn.Module:
    """Layers by name in a sequence."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 6, 5), act1=nn.ReLU(), pool1=nn.MaxPool2d(2), conv2=nn.Conv2d(6, 12, 3),
            act2=nn.ReLU(), pool2=nn.AvgPool2d(2), flat=nn.Flatten(), fc1=nn.Linear(48, 20), act3=nn.Tanh(),
            fc2=nn.Linear(20, 10),
        )
    )  # fmt: skip


def separable(stride: int = 1) -> nn.Module:
    """A depthwise and a pointwise convolution."""
    return Body(
        nn.Sequential(
            nn.Conv2d(8, 8, 3, stride, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
            nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        ),
        out=16,
    )  # fmt: skip


def groups() -> nn.Module:
    """A group norm and SiLU."""
    part = nn.Sequential(nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1))
    return Body(Residual(part))


class Autoencoder(nn.Module):
    """Returns the images again."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 4, 2, 1)
        self.up = nn.ConvTranspose2d(8, 3, 4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        return torch.sigmoid(self.up(F.leaky_relu(self.down(x), 0.2)))


def autoencoder() -> nn.Module:
    """A model that reconstructs its input."""
    return Autoencoder()


class UNet(nn.Module):
    """One skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.mid = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.dec, self.out = (
            nn.ConvTranspose2d(16, 8, 2, 2),
            nn.Conv2d(16, 8, 3, padding=1),
            nn.Conv2d(8, 4, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a class for each pixel."""
        skip = F.relu(self.enc(x))
        x = self.up(F.relu(self.mid(F.max_pool2d(skip, 2))))
        return self.out(F.relu(self.dec(torch.cat([skip, x], dim=1))))


def unet() -> nn.Module:
    """A class for each pixel."""
    return UNet()


class Mixer(nn.Module):
    """Dense layers over tokens, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 12, 4, 4)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(12) for _ in range(3))
        self.token1, self.token2 = nn.Linear(16, 20), nn.Linear(20, 16)
        self.channel1, self.channel2 = nn.Linear(12, 24), nn.Linear(24, 12)
        self.head = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.patch(x).flatten(2).permute(0, 2, 1)
        y = self.norm1(x).transpose(1, 2)
        x = x + self.token2(F.gelu(self.token1(y))).transpose(1, 2)
        x = x + self.channel2(F.gelu(self.channel1(self.norm2(x))))
        return self.head(self.norm3(x).mean(dim=1))


def mixer() -> nn.Module:
    """A small mixer."""
    return Mixer()


class Tokens(nn.Module):
    """Own attention over the positions of an image, with three dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        n, c, h, w = x.shape
        rows = x.flatten(2).transpose(1, 2)
        q, k, v = (part(rows).view(n, h * w, 2, c // 2).transpose(1, 2) for part in (self.query, self.key, self.value))
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(c // 2), dim=-1)
        rows = rows + self.out((weights @ v).transpose(1, 2).reshape(n, h * w, c))
        return rows.transpose(1, 2).reshape(n, c, h, w)


def tokens() -> nn.Module:
    """Attention by hand."""
    return Body(nn.Sequential(nn.MaxPool2d(2), Tokens()))


class Squeeze(nn.Module):
    """A gate made by 1x1 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 8, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return gated images."""
        return x * self.fc(self.pool(x))


def squeeze() -> nn.Module:
    """A gate of channels."""
    return Body(Squeeze())


class Signals(nn.Module):
    """Convolutions along one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(3, 8, 5, padding=2), nn.Conv1d(8, 8, 3, dilation=2)
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = F.max_pool1d(F.elu(self.norm(self.conv1(x))), 2)
        return self.head(F.elu(self.conv2(x)).amax(-1))


def signals() -> nn.Module:
    """A model of signals."""
    return Signals()


class Timed(nn.Module):
    """An image and a time step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.scale = nn.Embedding(10, 8), nn.Linear(8, 8)
        self.conv, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, image: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return images."""
        return self.out(F.silu(self.conv(image) + self.scale(self.embed(t))[:, :, None, None]))


def timed() -> nn.Module:
    """A denoiser."""
    return Timed()


class Heads(nn.Module):
    """Two outputs in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.kind, self.size = nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(8, 10), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return both."""
        x = F.relu(self.trunk(x)).mean((2, 3))
        return {"kind": self.kind(x), "size": self.size(x)}


def heads() -> nn.Module:
    """Two tasks."""
    return Heads()


class Again(nn.Module):
    """One convolution that is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        for _ in range(3):
            x = x + torch.tanh(self.conv(x))
        return x


def again() -> nn.Module:
    """Shared weights."""
    return Body(Again())


def instance() -> nn.Module:
    """An instance norm."""
    return Body(nn.Sequential(nn.InstanceNorm2d(8, affine=True), nn.PReLU(), nn.Conv2d(8, 8, 3, padding=1, bias=False)))


def curves(slope: float = 0.1) -> nn.Module:
    """Activations of many kinds."""
    return Body(
        nn.Sequential(
            nn.Conv2d(8, 8, 1), nn.LeakyReLU(slope), nn.Conv2d(8, 8, 1), nn.Softplus(), nn.Conv2d(8, 8, 1), nn.ELU(),
            nn.Conv2d(8, 8, 1), nn.Mish(), nn.Conv2d(8, 8, 1), nn.SELU(), nn.Conv2d(8, 8, 1), nn.LogSigmoid(),
        )
    )  # fmt: skip


def gelu() -> nn.Module:
    """An exact GELU."""
    return Body(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GELU()))


class Pyramid(nn.Module):
    """Dilated convolutions side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = nn.ModuleList([nn.Conv2d(8, 4, 3, padding=rate, dilation=rate) for rate in (1, 2, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return joined images."""
        return F.relu(torch.cat([rate(x) for rate in self.rates], 1))


def pyramid() -> nn.Module:
    """Dilations."""
    return Body(Pyramid(), out=12)


class Shuffle(nn.Module):
    """Grouped convolutions with a shuffle between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 1, groups=2), nn.Conv2d(8, 8, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        n, c, h, w = x.shape
        x = F.relu(self.first(x)).view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.second(x)


def shuffle() -> nn.Module:
    """Shuffled channels."""
    return Body(Shuffle())


class Enlarge(nn.Module):
    """Twice the size, by interpolation or by moved channels."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.conv = nn.Conv2d(3, 12 if mode == "pixels" else 6, 3, padding=1)
        self.out = nn.Conv2d(3 if mode == "pixels" else 6, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        x = F.relu(self.conv(x))
        x = F.pixel_shuffle(x, 2) if self.mode == "pixels" else F.interpolate(x, scale_factor=2.0, mode=self.mode)
        return self.out(x)


def enlarge(mode: str = "nearest") -> nn.Module:
    """Super-resolution."""
    return Enlarge(mode)


class Equalised(nn.Module):
    """A convolution that scales its weight at its call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8, 3, 3)), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        return F.conv2d(x, self.weight * (72**-0.5), self.bias, padding=1)


def equalised() -> nn.Module:
    """An equalised learning rate."""
    return Body(nn.Sequential(Equalised(), nn.ReLU()))


def norms(momentum: float = 0.1) -> nn.Module:
    """Batch norm before and after."""
    return Body(
        nn.Sequential(
            nn.BatchNorm2d(8, momentum=momentum), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8)
        )
    )


class Stopped(nn.Module):
    """A part without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        return self.head(F.relu(self.conv(x).detach() + F.pad(x, (-1, -1, -1, -1))))


def stopped() -> nn.Module:
    """A detached branch."""
    return Body(Stopped())


def dropped() -> nn.Module:
    """Dropout of channels, and of features."""
    return Body(nn.Sequential(nn.Dropout2d(0.3), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Dropout(0.1)))


class Checked(nn.Module):
    """Blocks that are computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1)) for _ in range(2)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def checked() -> nn.Module:
    """Checkpoints."""
    return Body(Checked())


class Encoder(nn.Module):
    """torch's own encoder over patches, with a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 17, 8) * 0.02)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.encoder(x)[:, 0])


def encoder() -> nn.Module:
    """A vision transformer."""
    return Encoder()


def layered() -> nn.Module:
    """A layer norm of channels in a residual block."""
    part = nn.Sequential(ChannelNorm(8), nn.Conv2d(8, 32, 1), nn.GELU(), nn.Conv2d(32, 8, 1))
    return Body(Residual(part, learned=True))


def pooled(stride: int = 2) -> nn.Module:
    """A pool with padding between convolutions."""
    return Body(nn.Sequential(nn.AvgPool2d(3, stride, 1), nn.Conv2d(8, 8, 3, padding=1)))


def deep(count: int = 3) -> nn.Module:
    """Convolutions in a row."""
    return Body(nn.Sequential(*(layer for _ in range(count) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()))))


class Flat(nn.Module):
    """An image as one row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(768, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.layers(x)


def flat() -> nn.Module:
    """A model without convolutions."""
    return Flat()


def logit() -> nn.Module:
    """One logit."""
    model = Body(nn.Conv2d(8, 8, 3))
    model.head = nn.Linear(8, 1)
    return model


class Bilinear(nn.Module):
    """A product of two branches, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 5, 3), nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        a, b = self.left(x).flatten(2), self.right(x).flatten(2)
        product = torch.einsum("nip,njp->nij", a, b) / a.shape[-1]
        return self.head(F.normalize(product.flatten(1), eps=1e-12))


def bilinear() -> nn.Module:
    """Bilinear pooling."""
    return Bilinear()


class Causal(nn.Conv1d):
    """A convolution that sees no later positions."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return signals."""
        return super().forward(F.pad(input, (self.dilation[0], 0)))


class Gated(nn.Module):
    """Two convolutions of one kind, a filter and its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, 8, 1)
        self.kinds = nn.ModuleList(Causal(8, 8, 2, dilation=2) for _ in range(2))
        self.head = nn.Conv1d(8, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a class for each position."""
        x = self.stem(x)
        return self.head(x + torch.tanh(self.kinds[0](x)) * torch.sigmoid(self.kinds[1](x)))


def gated() -> nn.Module:
    """A gate in signals."""
    return Gated()


class Mixing(nn.Module):
    """A convolution of length 1, with positions as its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(64, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        rows = x.flatten(2).transpose(1, 2)
        return (rows + self.mix(rows)).transpose(1, 2).view(x.shape)


def mixing() -> nn.Module:
    """A layer over positions."""
    return Body(Mixing())


class Standardised(nn.Conv2d):
    """A convolution with standardised weights and a gain."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3, padding=1)
        self.gain = nn.Parameter(torch.full((width, 1, 1, 1), 0.9))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return images."""
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), unbiased=False, keepdim=True)
        weight = (self.weight - mean) * torch.rsqrt(variance + 1e-6) * self.gain
        return F.conv2d(input, weight, self.bias, padding=1)


def standardised() -> nn.Module:
    """Standardised weights."""
    return Body(nn.Sequential(Standardised(8), nn.ReLU()))


class Attention(nn.Module):
    """Attention with a bias of queries and values alone, and one of positions, made by layers from a constant."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.q_bias, self.v_bias = (nn.Parameter(torch.full((width,), value)) for value in (0.1, 0.2))
        self.wide, self.narrow = nn.Linear(1, 4), nn.Linear(4, length, bias=False)
        self.register_buffer("table", (torch.arange(length) / length)[:, None], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows."""
        bias = torch.cat((self.q_bias, torch.zeros_like(self.q_bias), self.v_bias))
        q, k, v = F.linear(x, self.all.weight, bias).chunk(3, -1)
        scores = q @ k.transpose(1, 2) * 0.25 + self.narrow(F.relu(self.wide(self.table)))
        return self.out(scores.softmax(-1) @ v)


class Distilled(nn.Module):
    """Attention over patches with two tokens. In training it returns logits for each."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.cls_token, self.dist_token = (nn.Parameter(torch.full((1, 1, 16), value)) for value in (0.1, 0.2))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.blocks = nn.ModuleList(Attention(16, 18) for _ in range(2))
        self.head, self.head_dist = nn.Linear(16, 10), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return logits."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), self.dist_token.expand(len(x), -1, -1), x], 1)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        logits = self.head(x[:, 0]), self.head_dist(x[:, 1])
        return logits if self.training else (logits[0] + logits[1]) / 2


def distilled() -> nn.Module:
    """Two tokens."""
    return Distilled()


def derived() -> nn.Module:
    """Convolutions and what their classes in flax add."""
    return Body(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(8, 8, 3)))


def padded(before: int = 0) -> nn.Module:
    """Zeros that a module of their own pads."""
    after = 1 - before
    return Body(nn.Sequential(nn.ZeroPad2d((before, after, before, after)), nn.Conv2d(8, 8, 3, 2), nn.ReLU()))
