"""A plain Flax training loop as in the public examples, the yardstick for `jax:tuned`; needs no samestep.

ResNet-50 v1.5 as in Flax's ImageNet example, written in linen; the CIFAR net is six convolutions with batch norm.
bfloat16 computation with float32 parameters, optax SGD with Nesterov momentum, donated state, data resident on the
device; blocks of 10 steps (of one scan where --scan is larger), median of 30. On several devices by `pmap`, as in that
example, or by `jit` of a batch that is sharded over them.

    python benchmarks/plain_jax.py --workload resnet50
    python benchmarks/plain_jax.py --workload resnet50 --devices 2 --parallel pmap
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

SIZES = {"resnet50": (256, 224, 1000), "cifar-cnn": (512, 32, 10)}
BLOCK, BLOCKS, WARM_UP = 10, 30, 5


class Bottleneck(nn.Module):
    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        conv = partial(nn.Conv, use_bias=False, dtype=jnp.bfloat16)
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=jnp.bfloat16)
        y = nn.relu(norm()(conv(self.width, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.width, (3, 3), self.stride)(y)))
        y = norm(scale_init=nn.initializers.zeros_init())(conv(4 * self.width, (1, 1))(y))
        if x.shape != y.shape:
            x = norm()(conv(4 * self.width, (1, 1), self.stride)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    depths: Sequence[int] = (3, 4, 6, 3)

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.Conv(64, (7, 7), 2, [(3, 3), (3, 3)], use_bias=False, dtype=jnp.bfloat16)(x)
        x = nn.BatchNorm(not train, momentum=0.9, epsilon=1e-5, dtype=jnp.bfloat16)(x)
        x = nn.max_pool(nn.relu(x), (3, 3), (2, 2), "SAME")
        for stage, depth in enumerate(self.depths):
            for index in range(depth):
                x = Bottleneck(64 * 2**stage, 2 if stage and index == 0 else 1)(x, train)
        return nn.Dense(1000, dtype=jnp.bfloat16)(x.mean((1, 2))).astype(jnp.float32)


class CifarNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        for width in (32, 64, 128):
            for _ in range(2):
                x = nn.Conv(width, (3, 3), use_bias=False, dtype=jnp.bfloat16)(x)
                x = nn.relu(nn.BatchNorm(not train, momentum=0.9, epsilon=1e-5, dtype=jnp.bfloat16)(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(10, dtype=jnp.bfloat16)(x.mean((1, 2))).astype(jnp.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=tuple(SIZES), default="cifar-cnn")
    parser.add_argument("--scan", type=int, default=1, help="steps in one jax.lax.scan")
    parser.add_argument(
        "--command-buffers", action="store_true", help="CUDA graphs with convolutions and loops in them"
    )
    parser.add_argument("--batch-size", type=int, help="images per step and device")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--parallel", choices=("pmap", "sharded"), default="pmap", help="on several devices")
    wanted = parser.parse_args()
    way = wanted.parallel if wanted.devices > 1 else None
    if way and wanted.scan > 1:
        parser.error("--scan is for one device")
    jax.config.update("jax_num_cpu_devices", wanted.devices)  # where there is no GPU
    captured = ", command buffers with convolutions" if wanted.command_buffers else ""
    if captured:  # XLA reads it when it first looks for devices
        os.environ["XLA_FLAGS"] = "--xla_gpu_enable_command_buffer=+CONVOLUTION,+WHILE"
    batch, size, classes = SIZES[wanted.workload]
    batch = wanted.devices * (wanted.batch_size or batch)

    model = ResNet() if wanted.workload == "resnet50" else CifarNet()
    images = jax.random.normal(jax.random.key(0), (batch, size, size, 3), jnp.bfloat16)
    labels = jax.random.randint(jax.random.key(1), (batch,), 0, classes)
    variables = model.init(jax.random.key(2), images[:2])
    optimizer = optax.chain(optax.add_decayed_weights(5e-5), optax.sgd(0.1, momentum=0.9, nesterov=True))
    state = (variables["params"], variables["batch_stats"], optimizer.init(variables["params"]))

    def loss_of(parameters: Any, statistics: Any, images: Any, labels: Any) -> Any:
        logits, changed = model.apply(
            {"params": parameters, "batch_stats": statistics}, images, mutable=["batch_stats"]
        )
        targets = optax.smooth_labels(jax.nn.one_hot(labels, classes), 0.1)
        return optax.softmax_cross_entropy(logits, targets).mean(), changed["batch_stats"]

    def step(state: Any, images: Any, labels: Any) -> Any:
        parameters, statistics, moments = state
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, statistics), gradients = gradient(parameters, statistics, images, labels)
        if way == "pmap":
            gradients = jax.lax.pmean(gradients, "devices")
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), statistics, moments), loss

    def steps(state: Any, images: Any, labels: Any) -> Any:
        if wanted.scan == 1:
            return step(state, images, labels)
        return jax.lax.scan(lambda state, _: step(state, images, labels), state, length=wanted.scan)

    train: Any = jax.jit(steps, donate_argnums=0)
    if way:
        devices = jax.devices()[: wanted.devices]
        mesh = jax.make_mesh((len(devices),), ("devices",), devices=devices)
        split, whole = NamedSharding(mesh, PartitionSpec("devices")), NamedSharding(mesh, PartitionSpec())
        if way == "pmap":
            train = jax.pmap(steps, "devices", devices=devices, donate_argnums=0)
            state = jax.tree.map(lambda each: jnp.stack([each] * len(devices)), state)
            images, labels = (each.reshape(len(devices), -1, *each.shape[1:]) for each in (images, labels))
        state = jax.device_put(state, split if way == "pmap" else whole)
        images, labels = jax.device_put((images, labels), split)

    start = time.perf_counter()
    state, _ = train(state, images, labels)
    jax.block_until_ready(state)
    compiled = time.perf_counter() - start
    calls = max(1, BLOCK // wanted.scan)
    for _ in range(calls * WARM_UP):
        state, _ = train(state, images, labels)
    jax.block_until_ready(state)

    seconds: list[float] = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(calls):
            state, _ = train(state, images, labels)
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - start) / (calls * wanted.scan))
    figures = {
        "loop": f"plain flax, {way or ('jit' if wanted.scan == 1 else f'scan of {wanted.scan}')}{captured}",
        "workload": wanted.workload,
        "devices": wanted.devices,
        "batch_size": batch,
        "milliseconds": round(1e3 * median(seconds), 4),
        "first_step_seconds": round(compiled, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
