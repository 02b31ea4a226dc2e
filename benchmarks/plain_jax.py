"""Time a plain Flax training loop in the style of the public examples, without samestep.

It is the yardstick for `jax:tuned`. The networks are in plain_flax_models.py, and ResNet-50 is that of Flax's ImageNet
example. It computes in bfloat16 with float32 parameters. optax updates them: SGD with Nesterov momentum, or AdamW for
ConvNeXt. The state is donated, and the data lie on the device. The figure is the median of 30 blocks of 10 steps. A
larger --scan makes blocks of one scan each, at least 6 of them and for at least 5 s.

A loop whose loss is not finite at the end fails, because a GPU multiplies NaN with less power, and so faster.
Several devices train by `pmap`, as in that example, or by `jit` of a sharded batch.

    python benchmarks/plain_jax.py --workload resnet50
    python benchmarks/plain_jax.py --workload resnet50 --devices 2 --parallel pmap
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import optax
import plain_flax_models as models
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

# By workload: images per step, height and width, classes, label smoothing, network.
WORKLOADS: dict[str, tuple[int, int, int, float, Callable[[int], nn.Module]]] = {
    "cifar-cnn": (512, 32, 10, 0.0, models.CifarNet),
    "cifar-resnet18": (512, 32, 10, 0.0, partial(models.ResNet, block=models.Basic, depths=(2, 2, 2, 2), small=True)),
    "resnet50": (256, 224, 1000, 0.1, models.ResNet),
    "vgg16": (128, 224, 1000, 0.0, models.VGG),
    "mobilenet-v2": (256, 224, 1000, 0.0, models.MobileNetV2),
    "convnext-tiny": (128, 224, 1000, 0.1, models.ConvNeXt),
    "unet": (16, 256, 5, 0.0, models.UNet),
}
RATES = {"vgg16": 1e-3}  # of SGD. The others have 0.1, which gives NaN without batch norm.
BLOCK, BLOCKS, WARM_UP = 10, 30, 5
LEAST_BLOCKS, SECONDS = 6, 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="cifar-cnn")
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
    batch, size, classes, smoothing, network = WORKLOADS[wanted.workload]
    batch = wanted.devices * (wanted.batch_size or batch)

    model = network(classes)
    images = jax.random.normal(jax.random.key(0), (batch, size, size, 3), jnp.bfloat16)
    pixels = (size, size) if wanted.workload == "unet" else ()
    labels = jax.random.randint(jax.random.key(1), (batch, *pixels), 0, classes)
    variables = model.init(jax.random.key(2), images[:2])
    rate = RATES.get(wanted.workload, 0.1)
    optimizer = optax.chain(optax.add_decayed_weights(5e-5), optax.sgd(rate, momentum=0.9, nesterov=True))
    if wanted.workload == "convnext-tiny":
        optimizer = optax.adamw(1e-3, weight_decay=0.05)
    elif wanted.workload == "unet":
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optimizer)
    state = (variables["params"], variables.get("batch_stats", {}), optimizer.init(variables["params"]))

    def loss_of(parameters: Any, statistics: Any, images: Any, labels: Any) -> Any:
        logits, changed = model.apply(
            {"params": parameters, "batch_stats": statistics}, images, mutable=["batch_stats"]
        )
        logits = logits.astype(jnp.float32)
        if smoothing:
            targets = optax.smooth_labels(jax.nn.one_hot(labels, classes), smoothing)
            loss = optax.softmax_cross_entropy(logits, targets).mean()
        else:
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, changed.get("batch_stats", {})

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
    state, losses = train(state, images, labels)
    jax.block_until_ready(state)
    compiled = time.perf_counter() - start
    calls = max(1, BLOCK // wanted.scan)
    for _ in range(calls * WARM_UP):
        state, _ = train(state, images, labels)
    jax.block_until_ready(state)

    seconds: list[float] = []
    long = wanted.scan > BLOCK
    while len(seconds) < BLOCKS:
        if long and len(seconds) >= LEAST_BLOCKS and sum(seconds) * wanted.scan > SECONDS:
            break
        start = time.perf_counter()
        for _ in range(calls):
            state, losses = train(state, images, labels)
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - start) / (calls * wanted.scan))
    loss = float(jnp.ravel(losses)[-1])
    if not math.isfinite(loss):
        raise SystemExit(f"the loss is {loss}: what was timed are products of numbers that are none")
    figures = {
        "loop": f"plain flax, {way or ('jit' if wanted.scan == 1 else f'scan of {wanted.scan}')}{captured}",
        "workload": wanted.workload,
        "devices": wanted.devices,
        "batch_size": batch,
        "milliseconds": round(1e3 * median(seconds), 4),
        "first_step_seconds": round(compiled, 1),
        "loss": round(loss, 4),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
