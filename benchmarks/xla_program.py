"""What XLA makes of a training step for an H200, on a machine without one: its kernels, and the bytes that they move.

    pip install "jax[cuda13]"    # some gigabytes, for the compiler; best in an environment of its own
    python -m benchmarks.xla_program --workload resnet50 --steps-per-dispatch 8 [--lever jax-library-gradients]
        [--devices 4 --parallel sharded]

Nothing runs, and no kernels are timed against each other. Bytes are those of a kernel's operands and results, in
milliseconds at 4.2 TB/s, what an H200 copies; an operand of which a kernel reads a part counts as a whole. What a
convolution computes takes longer than its bytes.
"""

import argparse
import functools
import importlib
import logging
import math
import os
import re
from collections.abc import Iterator
from typing import Any

from benchmarks import levers
from benchmarks.programs import BYTES_PER_MILLISECOND, Kernel, table
from compare.base import workloads
from compare.base.interface import RunSpec
from compare.base.precisions import PRECISIONS
from compare.settings import tunings

H200 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
dnn_version_info { major: 9 minor: 19 patch: 0 }
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  device_memory_size: 150754820096 memory_bandwidth: 4814000000000 l2_cache_size: 62914560
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
}
"""
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}
NO_KERNEL = ("parameter", "get-tuple-element", "tuple", "bitcast", "constant")


def compiled(asked: argparse.Namespace) -> tuple[str, int]:
    """Return the text of the program that takes so many steps, on one device or several, and its temporaries' bytes."""
    count = asked.devices
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count} {os.environ.get('XLA_FLAGS', '')}"
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    from jaxbackend import parallel, tuning
    from jaxbackend.session import JaxSession

    _register_compiler()
    described = topologies.get_topology_desc("", "cuda", target_config=H200, topology=f"1x1x{count}")
    chosen, name = workloads.get(asked.workload), asked.parallel or ("none" if count == 1 else "pmap")
    knobs = tunings.resolve("jax", f"compiled+parallel={name}{asked.knobs}", "cpu", asked.workload)
    size = asked.batch_size or chosen.batch_size
    spec = RunSpec(
        asked.workload,
        asked.precision,
        "cpu",
        size * count,
        0,
        knobs,
        1,
        "",
        devices=count,
        batch_norm=asked.batch_norm,
    )
    session = JaxSession(spec)
    knobs |= {"steps-per-dispatch": asked.steps_per_dispatch, "kernel-search": True}
    several = tuning.several(session._step._train, knobs)
    way: Any = parallel._WAYS[name](list(described.devices), asked.batch_norm)
    parts = (count, size) if name == "pmap" else (size * count,)
    pool = () if several is None else (8,)
    labels = chosen.model.image[:2] if chosen.data == "shapes" else ()
    own = (count,) if asked.batch_norm == "local" else ()
    # pmap names its devices itself; to jax.jit, JAX takes them from where a program's arguments lie.
    whole: Any = None
    split: Any = None
    if name == "none":
        whole = split = jax.sharding.SingleDeviceSharding(described.devices[0])
    elif name == "sharded":
        whole = NamedSharding(way._mesh, PartitionSpec())
        split = NamedSharding(way._mesh, PartitionSpec(*([None] if pool else []), parallel.AXIS))
    state, batch = (functools.partial(jax.ShapeDtypeStruct, sharding=each) for each in (whole, split))
    shaped = jax.tree.map(lambda array: state(array.shape, array.dtype), session._state)
    buffers = jax.tree.map(lambda array: state((*own, *array.shape), array.dtype), shaped.buffers)
    arguments: list[Any] = [
        shaped._replace(buffers=buffers),
        batch((*pool, *parts, *chosen.model.image), session._policy.parameter_dtype),
        batch((*pool, *parts, *labels), jnp.int32),
    ]
    arguments += [state((), jnp.int32)] if pool else []
    with session._policy.scope():
        program: Any = way.program(several or session._step._train, knobs, several=several is not None)
        made = program.lower(*arguments).compile()
        return str(made.as_text()), made.memory_analysis().temp_size_in_bytes


def _register_compiler() -> None:
    """Let JAX know XLA's compiler for CUDA, without its plugin's checks of a driver, which is not there."""
    from jax._src import xla_bridge

    plugin: Any = importlib.import_module("jax_plugins.xla_cuda13")
    xla_bridge.register_plugin("cuda", library_path=str(plugin._get_library_path()), options=None)
    logging.getLogger(xla_bridge.__name__).disabled = True  # JAX tries again by itself, and says that it is there


def kernels(program: str) -> Iterator[Kernel]:
    """Yield what one step runs."""
    types: dict[str, str] = {}
    for line, name, made, operation, rest in operations(program):
        types[name] = made
        if operation not in NO_KERNEL:
            operands = re.findall(r"%([\w.\-]+)", rest.split("),")[0])
            moved = size_of(types[name]) + sum(size_of(types.get(each, "")) for each in operands)
            yield Kernel(kind(operation, line), types[name], origin(line), moved / BYTES_PER_MILLISECOND)


def operations(program: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a step's operations in order: line, name, type, operation, and the rest. Of a loop it is the body."""
    loop = re.search(r"while\(.*?body=(%[\w.\-]+)", program)
    start = program.index(f"\n{loop[1]} (") if loop else program.index("ENTRY")
    for line in program[start : program.index("\n}", start)].splitlines():
        found = re.match(r"\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)", line)
        if found is not None:
            yield line, found[1], found[2], found[3], found[4]


def overlapped(program: str) -> Iterator[str]:
    """Yield in words of how many exchanges of each kind a convolution lies between start and end."""
    started, counts = dict[str, int](), dict[str, list[bool]]()
    convolutions = 0
    for line, name, _, operation, rest in operations(program):
        convolutions += "__cudnn$conv" in line
        if operation.endswith("-start"):
            started[name] = convolutions
        elif operation.endswith("-done"):
            begun = re.findall(r"%([\w.\-]+)", rest)[0]
            counts.setdefault(operation.removesuffix("-done"), []).append(convolutions > started[begun])
    for kind_of_exchange, found in counts.items():
        yield f"{sum(found)} of {len(found)} {kind_of_exchange}: a convolution between start and end"


def kind(operation: str, line: str) -> str:
    told = re.search(r'custom_call_target="([^"]*)"' if operation == "custom-call" else r"kind=(\w+)", line)
    return f"{operation} {told[1]}" if told else operation


def origin(line: str) -> str:
    window, name = re.search(r"window=\{([^}]*)\}", line), re.search(r'op_name="([^"]*)"', line)
    return " ".join([window[1]] if window else []) + (name[1][-60:] if name else "")


def size_of(types: str) -> int:
    """Return the bytes of all arrays in a type."""
    arrays = re.findall(rf"\b({'|'.join(WIDTHS)})\[([\d,]*)\]", types)
    return sum(WIDTHS[dtype] * math.prod(int(side) for side in shape.split(",") if side) for dtype, shape in arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=tuple(workloads.WORKLOADS), required=True)
    parser.add_argument("--precision", choices=PRECISIONS, default="bfloat16")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps-per-dispatch", type=int, default=1)
    parser.add_argument(
        "--lever", nargs="+", choices=[name for name in levers.LEVERS if not name.startswith("torch")], default=["none"]
    )
    parser.add_argument("--knobs", default="", help="others, as in +rematerialisation")
    parser.add_argument("--devices", type=int, default=1, help="the program of one of so many")
    parser.add_argument("--parallel", choices=("pmap", "sharded"), help="how they split a batch; pmap if several do")
    parser.add_argument("--batch-norm", choices=("sync", "local"), default="sync", help="over the devices")
    parser.add_argument("--kernels", type=int, default=0, help="print so many of those that move most")
    asked = parser.parse_args()
    for lever in asked.lever:
        levers.LEVERS[lever]()
    program, temporaries = compiled(asked)
    print("\n".join([*table(list(kernels(program)), asked.kernels), *overlapped(program)]))
    print(f"{temporaries / 2**30:.2f} GiB of temporaries planned")


if __name__ == "__main__":
    main()
