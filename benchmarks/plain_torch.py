"""A plain PyTorch training loop as in the public examples, the yardstick for `torch:tuned`; needs no samestep.

ResNet-50 is torchvision's; the CIFAR net is six convolutions with batch norm. Automatic mixed precision in bfloat16,
channels_last, fused SGD with Nesterov momentum, data resident on the device; blocks of 10 steps, median of 30.

    python benchmarks/plain_torch.py --workload resnet50 --mode compile
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn
from torch.nn import functional

SIZES = {"resnet50": (256, 224, 1000), "cifar-cnn": (512, 32, 10)}
BLOCK, BLOCKS, WARM_UP, CAPTURED = 10, 30, 5, 10


def cifar_net() -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def network(workload: str) -> nn.Module:
    if workload == "cifar-cnn":
        return cifar_net()
    try:
        from torchvision.models import resnet50  # type: ignore[import-not-found] -- not one of samestep's packages
    except ImportError:
        sys.exit("--workload resnet50 is torchvision's model, which is not installed; allowed here: cifar-cnn")

    return resnet50()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=tuple(SIZES), default="cifar-cnn")
    parser.add_argument("--mode", choices=("eager", "compile", "reduce-overhead", "graph"), default="compile")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch-size", type=int)
    wanted = parser.parse_args()
    batch, size, classes = SIZES[wanted.workload]
    batch = wanted.batch_size or batch

    torch.backends.cudnn.benchmark = True
    device = torch.device(wanted.device)
    model = network(wanted.workload).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] -- torch's annotations leave out this form
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-5, fused=True)
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device=device)
    forward: Callable[[torch.Tensor], torch.Tensor] = model
    if wanted.mode != "eager":
        mode = "reduce-overhead" if wanted.mode == "reduce-overhead" else "default"
        forward = torch.compile(model, mode=mode)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(wanted.device, torch.bfloat16):
            loss = functional.cross_entropy(forward(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss

    def wait() -> None:
        if wanted.device == "cuda":
            torch.cuda.synchronize()

    start = time.perf_counter()
    step()
    wait()
    compiled = time.perf_counter() - start
    for _ in range(WARM_UP):
        step()
    train: Callable[[], object] = step
    taken = BLOCK
    if wanted.mode == "graph":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CAPTURED):
                step()
        train, taken = graph.replay, BLOCK // CAPTURED
    for _ in range(taken * WARM_UP):
        train()
    wait()

    seconds: list[float] = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(taken):
            train()
        wait()
        seconds.append((time.perf_counter() - start) / BLOCK)
    figures = {
        "loop": f"plain torch, {wanted.mode}",
        "workload": wanted.workload,
        "batch_size": batch,
        "milliseconds": round(1e3 * median(seconds), 4),
        "first_step_seconds": round(compiled, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
