"""Wrong gradients of torch.compile that the certificate found: error of the compiled against the eager gradient.

python -m benchmarks.compiled_gradient
python -m benchmarks.compiled_gradient --device cuda --precision float64
"""

import argparse
import itertools

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCHES, SIZES = (2, 4, 7, 64), (8, 9)


class Flatten(nn.Module):
    """Flatten in height, width, channel order."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def error(backend: str, batch: int, size: int, device: str, precision: str) -> float:
    """Return |compiled - eager| / |eager| of the convolution's bias gradient; bfloat16 is autocast's."""
    torch.manual_seed(0)
    torch.compiler.reset()
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), Flatten(), nn.Linear(32 * (size // 2) ** 2, 10)
    )
    wide = torch.float64 if precision == "float64" else torch.float32
    model.to(device, wide)
    images = torch.randn(batch, 1, size, size, device=device, dtype=wide)
    labels = torch.randint(0, 10, (batch,), device=device)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(images)
        return cross_entropy(logits.to(wide), labels)

    bias = model[0].bias
    assert isinstance(bias, nn.Parameter)
    (eager,) = torch.autograd.grad(loss(images, labels), bias)
    (compiled,) = torch.autograd.grad(torch.compile(loss, backend=backend)(images, labels), bias)
    return float((compiled - eager).norm() / eager.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float64", "float32", "bfloat16"), default="bfloat16")
    wanted = parser.parse_args()
    print(f"torch {torch.__version__} {wanted.device} {wanted.precision}")
    for batch, size in itertools.product(BATCHES, SIZES):
        errors = ", ".join(
            f"{backend} {error(backend, batch, size, wanted.device, wanted.precision):.1e}"
            for backend in ("inductor", "aot_eager")
        )
        print(f"batch {batch}, {size}x{size} pixels: {errors}")


if __name__ == "__main__":
    main()
