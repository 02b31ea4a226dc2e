"""A wrong gradient of torch.compile that the certificate found: error of the compiled against the eager gradient.

python benchmarks/compiled_gradient.py
"""

import itertools

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCHES, SIZES = (2, 4, 7, 64), (8, 9)


def error(backend: str, batch: int, size: int) -> float:
    """Return |compiled - eager| / |eager| of the convolution's bias gradient, bfloat16 by autocast, on the CPU."""
    torch.manual_seed(0)
    torch.compiler.reset()
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * (size // 2) ** 2, 10)
    )
    images, labels = torch.randn(batch, 1, size, size), torch.randint(0, 10, (batch,))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(images)
        return cross_entropy(logits.float(), labels)

    bias = model[0].bias
    assert isinstance(bias, nn.Parameter)
    (eager,) = torch.autograd.grad(loss(images, labels), bias)
    (compiled,) = torch.autograd.grad(torch.compile(loss, backend=backend)(images, labels), bias)
    return float((compiled - eager).norm() / eager.norm())


def main() -> None:
    print(f"torch {torch.__version__}")
    for batch, size in itertools.product(BATCHES, SIZES):
        errors = ", ".join(f"{backend} {error(backend, batch, size):.1e}" for backend in ("inductor", "aot_eager"))
        print(f"batch {batch}, {size}x{size} pixels: {errors}")


if __name__ == "__main__":
    main()
