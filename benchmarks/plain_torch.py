"""Time a plain PyTorch training loop in the style of the public examples, without samestep.

It is the yardstick for `torch:tuned`. The networks are torchvision's, or in plain_torch_models.py. It uses automatic
mixed precision in bfloat16, channels_last, and a fused optimizer: SGD with Nesterov momentum, or AdamW for ConvNeXt.
The data lie on the device. The figure is the median of 30 blocks of 10 steps.

A loop whose loss is not finite at the end fails, because a GPU multiplies NaN with less power, and so faster.
Under torchrun, DistributedDataParallel trains with one process and one batch for each device.

    python benchmarks/plain_torch.py --workload resnet50 --mode compile
    torchrun --standalone --nproc-per-node 2 benchmarks/plain_torch.py --workload resnet50 --mode compile
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from plain_torch_models import network
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

# By workload: images per step, height and width, classes, label smoothing.
WORKLOADS = {
    "cifar-cnn": (512, 32, 10, 0.0),
    "cifar-resnet18": (512, 32, 10, 0.0),
    "resnet50": (256, 224, 1000, 0.1),
    "vgg16": (128, 224, 1000, 0.0),
    "mobilenet-v2": (256, 224, 1000, 0.0),
    "convnext-tiny": (128, 224, 1000, 0.1),
    "unet": (16, 256, 5, 0.0),
}
RATES = {"vgg16": 1e-3}  # of SGD. The others have 0.1, which gives NaN without batch norm.
BLOCK, BLOCKS, WARM_UP, CAPTURED = 10, 30, 5, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="cifar-cnn")
    parser.add_argument("--mode", choices=("eager", "compile", "reduce-overhead", "graph"), default="compile")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch-size", type=int, help="images per step and device")
    parser.add_argument("--sync-batch-norm", action="store_true", help="statistics over the devices' batches together")
    wanted = parser.parse_args()
    batch, size, classes, smoothing = WORKLOADS[wanted.workload]
    batch, ranks = wanted.batch_size or batch, int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1 and wanted.mode == "graph":
        parser.error("--mode graph is for one device")

    torch.backends.cudnn.benchmark = True
    device = torch.device(wanted.device)
    if ranks > 1:
        dist.init_process_group("nccl" if wanted.device == "cuda" else "gloo")
        if wanted.device == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
    model = network(wanted.workload, classes).to(device)
    if wanted.sync_batch_norm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] -- torch's annotations leave out this form
    optimizer: torch.optim.Optimizer
    if wanted.workload == "convnext-tiny":
        captured = wanted.mode == "graph"
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05, fused=True, capturable=captured)
    else:
        rate = RATES.get(wanted.workload, 0.1)
        optimizer = torch.optim.SGD(model.parameters(), rate, 0.9, nesterov=True, weight_decay=5e-5, fused=True)
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    pixels = (size, size) if wanted.workload == "unet" else ()
    labels = torch.randint(classes, (batch, *pixels), device=device)
    trained = DistributedDataParallel(model, gradient_as_bucket_view=True) if ranks > 1 else model
    forward: Callable[[torch.Tensor], torch.Tensor] = trained
    if wanted.mode != "eager":
        mode = "reduce-overhead" if wanted.mode == "reduce-overhead" else "default"
        forward = torch.compile(trained, mode=mode)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(wanted.device, torch.bfloat16):
            loss = functional.cross_entropy(forward(images), labels, label_smoothing=smoothing)
        loss.backward()
        if wanted.workload == "unet":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
    loss = step().item()
    if not math.isfinite(loss):
        raise SystemExit(f"the loss is {loss}: what was timed are products of numbers that are none")
    figures = {
        "loop": f"plain torch, {wanted.mode}{', synchronised batch norm' if wanted.sync_batch_norm else ''}",
        "workload": wanted.workload,
        "devices": ranks,
        "batch_size": batch * ranks,
        "milliseconds": round(1e3 * median(seconds), 4),
        "first_step_seconds": round(compiled, 1),
        "loss": round(loss, 4),
    }
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(figures))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
