"""The torch side of more pairs. Each factory has its partner of the same name in `more_flax.py`."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.pairs.styles_torch import Body


class TwiceTied(nn.Module):
    """Two places for convolutions, with one convolution at both if asked."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = self.first if tied else nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        return self.second(F.relu(self.first(x)))


def twice_tied(tied: bool = True) -> nn.Module:
    """One convolution at two places."""
    return Body(TwiceTied(tied))


class Words(nn.Module):
    """Scores of the next word, by the embedding's own weights if asked."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed, self.hidden = nn.Embedding(10, 8), nn.Linear(8, 8)
        self.decoder = nn.Linear(8, 10, bias=False)
        if tied:
            self.decoder.weight = self.embed.weight

    def forward(self, words: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        return self.decoder(torch.tanh(self.hidden(self.embed(words) + x)))


def words(tied: bool = True) -> nn.Module:
    """An embedding that also decodes."""
    return Words(tied)


class RootNorm(nn.Module):
    """RMSNorm, computed in float32 as many language models do if asked."""

    def __init__(self, width: int, single: bool) -> None:
        super().__init__()
        self.weight, self.single = nn.Parameter(torch.ones(width)), single

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return normalised rows."""
        y = x.float() if self.single else x
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.type_as(x) * self.weight


class Rows(nn.Module):
    """Patches as rows, a part, a mean over rows and a dense layer."""

    def __init__(self, part: nn.Module, width: int = 8, size: int = 4) -> None:
        super().__init__()
        self.patch, self.part, self.head = nn.Conv2d(3, width, size, size), part, nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.part(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def root_norm(single: bool = False) -> nn.Module:
    """RMSNorm."""
    return Rows(nn.Sequential(RootNorm(8, single), nn.Linear(8, 8), nn.GELU()))


class Orders(nn.Module):
    """Free parameters of one shape, not used in the order of their definition."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma2, self.gamma1 = (nn.Parameter(torch.full((8,), value)) for value in (0.2, 0.1))
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.pos, self.scale = (nn.Parameter(torch.randn(1, 16, 8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows."""
        x = x * self.scale + self.pos
        x = x + self.gamma1 * self.first(x)
        return x + self.gamma2 * self.second(x)


def orders() -> nn.Module:
    """Parameters in another order."""
    return Rows(Orders())


class Tokens(nn.Module):
    """Two tokens of one shape that are joined in the other order of their definition."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.early = early
        self.register, self.cls = (nn.Parameter(torch.randn(1, 1, 8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows."""
        tokens = (self.register, self.cls) if self.early else (self.cls, self.register)
        rows = [token.expand(len(x), -1, -1) for token in tokens]
        cls, register = rows[::-1] if self.early else rows
        return torch.cat([cls, x, register], 1).cumsum(1)


def joined_tokens(early: bool = False) -> nn.Module:
    """Tokens in another order."""
    return Rows(Tokens(early))


class Film(nn.Module):
    """A condition scales and shifts normalised images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8, affine=False)
        self.condition, self.out = nn.Linear(6, 16), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, image: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """Return images."""
        scale, shift = self.condition(c)[:, :, None, None].chunk(2, dim=1)
        return self.out(F.silu(self.norm(self.stem(image)) * (1 + scale) + shift))


def film() -> nn.Module:
    """FiLM."""
    return Film()


class Fourier(nn.Module):
    """Sines and cosines of coordinates, by a table that is a buffer."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(8, dtype=torch.float32).reshape(2, 4) / 8)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, coords: torch.Tensor) -> torch.Tensor:
        """Return colours."""
        angles = 2 * torch.pi * coords @ self.table
        return self.layers(torch.cat([angles.sin(), angles.cos()], -1))


def fourier() -> nn.Module:
    """Fourier features."""
    return Fourier()


def volume() -> nn.Module:
    """A reconstruction of volumes."""
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, 2, 1), nn.InstanceNorm3d(4, affine=True), nn.LeakyReLU(0.01),
        nn.ConvTranspose3d(4, 1, 2, 2),
    )  # fmt: skip


def transposed(output_padding: int = 1) -> nn.Module:
    """A transposed convolution with equal widths."""
    return Body(nn.Sequential(nn.ConvTranspose2d(8, 8, 3, 2, 1, output_padding), nn.ReLU()))


class Inverted(nn.Module):
    """An inverted residual block with a gate."""

    def __init__(self, width: int = 8, wide: int = 24) -> None:
        super().__init__()
        self.expand, self.depth, self.project = (
            nn.Conv2d(width, wide, 1, bias=False),
            nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False),
            nn.Conv2d(wide, width, 1, bias=False),
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(size, eps=1e-3, momentum=0.01) for size in (wide, wide, width))
        self.reduce, self.restore = nn.Conv2d(wide, 6, 1), nn.Conv2d(6, wide, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        y = F.hardswish(self.norms[0](self.expand(x)))
        y = F.hardswish(self.norms[1](self.depth(y)))
        y = y * F.hardsigmoid(self.restore(F.relu(self.reduce(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.norms[2](self.project(y))


def inverted() -> nn.Module:
    """MobileNetV3's block."""
    return Body(Inverted())


def same() -> nn.Module:
    """A convolution of an even length that keeps the length."""
    return nn.Sequential(
        nn.Conv1d(3, 8, 4, padding="same"), nn.GELU(approximate="tanh"), nn.Conv1d(8, 8, 3, 2, 1, groups=4), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip


def circular() -> nn.Module:
    """Edges from the other side."""
    return Body(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), nn.ReLU()))


def reflected() -> nn.Module:
    """Mirrored edges."""
    return Body(nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(8, 8, 3), nn.ReLU()))


class GatedMLP(nn.Module):
    """SwiGLU from one dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = RootNorm(8, False), nn.Linear(8, 32, bias=False), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows."""
        gate, value = self.wide(self.norm(x)).chunk(2, -1)
        return x + self.narrow(F.silu(gate) * value)


def gated_mlp() -> nn.Module:
    """A gated MLP."""
    return Rows(GatedMLP())


class SpatialGate(nn.Module):
    """Half of the features are mixed over rows, and gate the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm, self.mix, self.narrow = (
            nn.Linear(8, 12),
            nn.LayerNorm(6),
            nn.Conv1d(16, 16, 1),
            nn.Linear(6, 8),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows."""
        u, v = F.gelu(self.wide(x)).chunk(2, dim=-1)
        return x + self.narrow(u * self.mix(self.norm(v)))


def spatial_gate() -> nn.Module:
    """gMLP."""
    return Rows(SpatialGate())


def grouped() -> nn.Module:
    """A group norm."""
    return Body(nn.Sequential(nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)))


class Standardised(nn.Conv2d):
    """A convolution that standardises its weights by a batch norm, as timm does."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return images."""
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(self.weight)
        return F.conv2d(input, weight, self.bias, self.stride, self.padding)


def standard_weights() -> nn.Module:
    """Weight standardisation with timm's trick."""
    return Body(nn.Sequential(Standardised(8, 8, 3, padding=1), nn.ReLU()))


class Window(nn.Module):
    """Attention over a window with a table of relative positions."""

    index: torch.Tensor

    def __init__(self, width: int = 8, heads: int = 2, size: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.randn((2 * size - 1) ** 2, heads) * 0.1)
        places = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None, :]) + size - 1
        self.register_buffer("index", apart[0] * (2 * size - 1) + apart[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows."""
        n, length, width = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q * (width // self.heads) ** -0.5 @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(length, length, -1).permute(2, 0, 1)
        scores = (scores + bias.unsqueeze(0)).softmax(-1)
        return x + self.proj((scores @ v).transpose(1, 2).reshape(n, length, width))


def window() -> nn.Module:
    """Swin's attention."""
    return Rows(Window())


class Rotary(nn.Module):
    """Attention with rotated queries and keys."""

    angles: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8, bias=False) for _ in range(4))
        angles = torch.outer(torch.arange(16), torch.tensor([1.0, 0.25]))
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows."""
        n, length, width = x.shape
        q, k, v = (part(x).view(n, length, 2, 4).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))

        def turn(x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, -1)
            return x * self.angles.cos() + torch.cat((-b, a), -1) * self.angles.sin()

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        return x + self.o_proj(y.transpose(1, 2).reshape(n, length, width))


def rotary() -> nn.Module:
    """Rotary positions."""
    return Rows(Rotary())


class DropPath(nn.Module):
    """Stochastic depth."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows."""
        if not self.training or self.drop_prob == 0.0:
            return x
        mask = x.new_empty(len(x), 1, 1, 1).bernoulli_(1 - self.drop_prob)
        return x * mask / (1 - self.drop_prob)


class Depth(nn.Module):
    """A residual block that is left out at times."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv2d(8, 8, 3, padding=1), DropPath(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        return x + self.drop(F.relu(self.conv(x)))


def depth() -> nn.Module:
    """Stochastic depth."""
    return Body(Depth())


class Centred(nn.Module):
    """Subtracts a moving mean of the features."""

    center: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 8))
        self.project = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = x.mean((2, 3))
        result = self.project(x - self.center)
        if self.training:
            with torch.no_grad():
                self.center.mul_(0.9).add_(x.mean(0, keepdim=True), alpha=0.1)
        return result


def centred() -> nn.Module:
    """A buffer that follows the features."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), Centred())


class Segmented(nn.Module):
    """Lateral 1x1 convolutions and a sum from coarse to fine."""

    def __init__(self, align: bool) -> None:
        super().__init__()
        self.align = align
        self.c1, self.c2 = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 12, 3, 2, 1)
        self.l1, self.l2, self.out = nn.Conv2d(8, 6, 1), nn.Conv2d(12, 6, 1), nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a class for each pixel."""
        c1 = F.relu(self.c1(x))
        c2 = F.relu(self.c2(c1))
        y = self.l1(c1) + F.interpolate(self.l2(c2), size=c1.shape[-2:], mode="bilinear", align_corners=self.align)
        return F.interpolate(self.out(y), scale_factor=2, mode="nearest")


def segmented(align: bool = False) -> nn.Module:
    """Segmentation."""
    return Segmented(align)


class Keypoints(nn.Module):
    """The expected place of each heat map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.heat = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x and y of each point."""
        heat = self.heat(F.relu(self.stem(x)))
        n, points, h, w = heat.shape
        share = heat.flatten(2).softmax(-1).view(n, points, h, w)
        xs, ys = (torch.linspace(0, 1, size, dtype=x.dtype) for size in (w, h))
        return torch.stack([(share.sum(2) * xs).sum(-1), (share.sum(3) * ys).sum(-1)], -1)


def keypoints() -> nn.Module:
    """Key points by a soft argmax."""
    return Keypoints()


def space_to_depth() -> nn.Module:
    """Moves blocks into channels."""
    return nn.Sequential(
        nn.PixelUnshuffle(4), nn.Conv2d(48, 8, 3, padding=1), nn.PReLU(8), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        nn.Linear(8, 10),
    )  # fmt: skip


class Siamese(nn.Module):
    """One encoder for two images."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.Softplus(beta=2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(8, 10)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(torch.abs(self.encoder(a) - self.encoder(b)))


def siamese() -> nn.Module:
    """Two images."""
    return Siamese()


class Experts(nn.Module):
    """A weighted sum of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(3))
        self.router = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows."""
        shares = torch.softmax(self.router(x), dim=-1)
        return torch.einsum("nle,nlec->nlc", shares, torch.stack([expert(x) for expert in self.experts], dim=2))


def experts() -> nn.Module:
    """A mixture of experts."""
    return Rows(Experts())


class NonLocal(nn.Module):
    """A non-local block by its paper's names."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.theta, self.phi = (nn.Conv2d(8, 4, 1) for _ in range(3))
        self.W = nn.Conv2d(4, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        theta, phi, g = (part(x).flatten(2) for part in (self.theta, self.phi, self.g))
        share = torch.softmax(theta.transpose(1, 2) @ phi / math.sqrt(4), -1)
        y = (share @ g.transpose(1, 2)).transpose(1, 2).reshape(len(x), 4, *x.shape[2:])
        return x + self.W(y)


def non_local() -> nn.Module:
    """A non-local block."""
    return Body(nn.Sequential(nn.MaxPool2d(3, 2, ceil_mode=True), NonLocal()))
