"""Time plain requests in the style of the public examples, without samestep: one forward pass after the other.

It is the yardstick for `torch:tuned` and `jax:tuned` with --task infer. torch's loop has the options of timm's
benchmark.py: weights and images in bfloat16, channels_last, cudnn.benchmark and inference_mode. Its modes are those of
torch.compile, op by op, a CUDA graph of the compiled model, and TorchInductor's freezing. JAX's loop is `jax.jit` of a
linen model's `apply`, its weights in float32 as flax keeps them, in bfloat16, or as constants in bfloat16. Each request
is waited for. The networks are those of
plain_torch.py and plain_jax.py. With --backend and --ours it times samestep's own session in the same loop.

    python benchmarks/plain_requests.py --backend torch --workload resnet50 --batch-size 1 --mode max-autotune
    python -m benchmarks.plain_requests --backend jax --workload resnet50 --batch-size 256 --ours tuned
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

TORCH_MODES = ("eager", "default", "reduce-overhead", "max-autotune", "graph", "freezing")
JAX_MODES = ("jit", "jit-bfloat16-weights", "jit-command-buffers", "jit-constant-weights")
REQUESTS, WARM_UP, QUEUED, LEAST = 1000, 50, 100, 20

Request = tuple[Callable[[], None], Callable[[], None]]
"""Starts a request, and waits for it."""


def make_torch(workload: str, batch: int, mode: str, device: str) -> Request:
    import torch
    from plain_torch import WORKLOADS
    from plain_torch_models import network

    _, size, classes, _ = WORKLOADS[workload]
    torch.backends.cudnn.benchmark = True
    model = network(workload, classes).to(device, torch.bfloat16).eval()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(batch, 3, size, size, device=device, dtype=torch.bfloat16)
    images = images.to(memory_format=torch.channels_last)
    answer: Any = model
    if mode == "freezing":
        from torch._inductor import config

        config.freezing = True
    if mode != "eager":
        answer = torch.compile(model, mode=mode if mode in ("reduce-overhead", "max-autotune") else None)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def run() -> None:
        with torch.inference_mode():
            answer(images)

    for _ in range(3):
        run()
    wait()
    if mode != "graph":
        return run, wait
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        answer(images)
    return graph.replay, wait


def make_jax(workload: str, batch: int, mode: str, _: str) -> Request:
    if mode == "jit-command-buffers":
        os.environ["XLA_FLAGS"] = "--xla_gpu_enable_command_buffer=+CONVOLUTION,+WHILE"
    import jax
    import jax.numpy as jnp
    from plain_jax import WORKLOADS

    facts = WORKLOADS[workload]
    size, classes, network = facts[1], facts[2], facts[4]
    model = network(classes)
    images = jax.random.normal(jax.random.key(0), (batch, size, size, 3), jnp.bfloat16)
    variables = model.init(jax.random.key(2), images[:1])
    if mode == "jit-bfloat16-weights":
        variables = jax.tree.map(lambda each: each.astype(jnp.bfloat16), variables)
    if mode == "jit-constant-weights":  # XLA would drop additions of zeros and factors of one
        variables = jax.tree.map(lambda each: each + 0.1 * jax.random.uniform(jax.random.key(3), each.shape), variables)
        variables = jax.tree.map(lambda each: each.astype(jnp.bfloat16), variables)
    takes_train = "batch_stats" in variables

    @jax.jit
    def answer(variables: Any, images: Any) -> Any:
        return model.apply(variables, images, train=False) if takes_train else model.apply(variables, images)

    constant = jax.jit(lambda images: answer(variables, images))
    last: list[Any] = [None]

    def run() -> None:
        last[0] = constant(images) if mode == "jit-constant-weights" else answer(variables, images)

    run()
    return run, lambda: jax.block_until_ready(last[0])


def make_ours(backend: str, workload: str, batch: int, tuning: str, device: str) -> Request:
    from benchmarks import in_process

    worker = in_process.open_worker(
        backend, tuning, workload, precision="bfloat16", device=device, batch_size=batch, task="infer"
    )
    session = worker._open_session
    return lambda: session.run(1), session.wait


def measure(request: Request, most_seconds: float) -> dict[str, float]:
    """Return the quantiles of single requests and the time of a queued one in milliseconds, and their number.

    Single requests take `most_seconds` at most, but there are some.
    """
    run, wait = request

    def time_one() -> float:
        start = time.perf_counter()
        run()
        wait()
        return time.perf_counter() - start

    expected = min(time_one() for _ in range(3))
    share = min(1.0, most_seconds / (REQUESTS * expected))
    requests, warm_up, queued = (max(LEAST, int(share * count)) for count in (REQUESTS, WARM_UP, QUEUED))
    for _ in range(warm_up):
        time_one()
    seconds = [time_one() for _ in range(requests)]
    start = time.perf_counter()
    for _ in range(queued):
        run()
    wait()
    of_queued = (time.perf_counter() - start) / queued
    quantiles = {f"p{share}": round(1e3 * float(np.quantile(seconds, share / 100)), 5) for share in (50, 90, 99)}
    return {**quantiles, "queued": round(1e3 * of_queued, 5), "requests": requests}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("torch", "jax"), required=True)
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--mode", choices=(*TORCH_MODES, *JAX_MODES))
    parser.add_argument("--ours", help="a tuning of samestep's in place of a plain loop")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=10.0, help="of single requests at most")
    wanted = parser.parse_args()
    start = time.perf_counter()
    if wanted.ours:
        request = make_ours(wanted.backend, wanted.workload, wanted.batch_size, wanted.ours, wanted.device)
    else:
        make = {"torch": make_torch, "jax": make_jax}[wanted.backend]
        mode = wanted.mode or {"torch": "default", "jax": "jit"}[wanted.backend]
        request = make(wanted.workload, wanted.batch_size, mode, wanted.device)
    request[0]()
    request[1]()
    first = time.perf_counter() - start
    loop = f"samestep {wanted.backend}:{wanted.ours}" if wanted.ours else f"plain {wanted.backend}, {wanted.mode}"
    figures = {
        "loop": loop,
        "workload": wanted.workload,
        "batch_size": wanted.batch_size,
        **measure(request, wanted.seconds),
    }
    print(json.dumps({**figures, "first_seconds": round(first, 1)}))


if __name__ == "__main__":
    main()
