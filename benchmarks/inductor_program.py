"""What TorchInductor makes of a model's forward and backward pass for an H200, on a machine without one.

    pip install torch==2.11.0    # a build for CUDA, some gigabytes; best in an environment of its own
    python -m benchmarks.inductor_program --workload resnet50 [--lever torch-library-gradients] [--devices 2] [--plain]

Nothing runs. The passes are traced on the CPU and moved to a GPU that torch is told of, for its autograd knows no more
devices than the machine has. Bytes are those of all that a kernel reads and writes, each tensor once, in milliseconds
at 4.2 TB/s, what an H200 copies: kernels without a reduction run at about that, reductions at three quarters.
Convolutions, matrix products and the optimizer are others' kernels and not in the table, and `concurrent-kernels` is
off; over several devices batch norm is synchronised. The kernels' names are those that the profiler shows
(benchmarks/h200/levers-resnet50.txt). With `--plain`, the model is that of the plain loop.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo import device_interface
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch._inductor import compile_fx, decomposition, graph, scheduler
from torch._inductor import config as inductor
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _triton

from benchmarks import levers, plain_torch_models
from benchmarks.programs import BYTES_PER_MILLISECOND, Kernel, table
from compare.base import workloads
from compare.base.precisions import PRECISIONS
from compare.settings import tunings
from torchbackend import exchange, losses, models, precision, tuning

H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=150754820096,
    L2_cache_size=62914560,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    is_integrated=False,
    is_multi_gpu_board=False,
)
KINDS = {"poi": "fusion, element by element", "red": "fusion, reduction", "per": "fusion, small reduction"}

Traced = list[tuple[Any, Any, bool]]
"""Graphs, each with its inputs and whether it is a backward pass."""


def programs(asked: argparse.Namespace) -> list[str]:
    """Return the text of the forward and of the backward program."""
    knobs = tunings.resolve("torch", asked.tuning, "cuda", asked.workload, asked.precision)
    inductor.force_disable_caches = inductor.profile_bandwidth = True  # a kernel's bytes are written into it
    inductor.compile_threads = 1
    setattr(decomposition, "is_gpu", _answer(True))  # noqa: B010 -- a bias's gradient is a sum of its own on a GPU
    traced = _traced(asked, {**knobs, "concurrent-kernels": False})
    _pretend()
    written: list[str] = []

    def write(self: Any) -> Any:
        written.append(self.codegen()[0].value)
        return SimpleNamespace(__file__="", call=_answer(None))  # nothing to load

    setattr(graph.GraphLowering, "_compile_to_module", write)  # noqa: B010 -- pyright wants the same result
    for each in traced:
        _lowered(*each)
    return written


def _traced(asked: argparse.Namespace, knobs: Mapping[str, Any]) -> Traced:
    functorch.force_non_lazy_backward_lowering = True
    chosen, policy = workloads.get(asked.workload), precision.policy(asked.precision, "cpu")
    if asked.devices > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=asked.devices)
        policy = replace(policy, batch_norm_synchronised=True)
    twin = models.build(chosen.model, policy)
    model = plain_torch_models.network(asked.workload, chosen.model.classes) if asked.plain else twin
    model, channels_last = model.train(), bool(knobs["channels-last"])
    tuning.prepare(knobs, "cuda", exchanges=exchange.in_step(model))
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stubs lack it
    (height, width, channels), size = chosen.model.image, asked.batch_size or chosen.batch_size
    traced: Traced = []

    def kept(*, backward: bool) -> Callable[[Any, Any], Any]:
        def keep(module: Any, inputs: Any) -> Any:
            traced.append((module, inputs, backward))
            return module.forward

        return keep

    def parts(joint: Any, inputs: Any, **options: Any) -> Any:
        joint = compile_fx._recursive_joint_graph_passes(joint) or joint
        return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)

    def objective(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return losses.softmax_cross_entropy(model(images).to(policy.parameter_dtype), labels)

    backend = aot_autograd(
        fw_compiler=kept(backward=False),
        bw_compiler=kept(backward=True),
        decompositions=select_decomp_table,
        partition_fn=parts,
    )
    with FakeTensorMode(), policy.autocast("cpu"):
        for module in model.modules():
            for values, kind in ((module._parameters, torch.nn.Parameter), (module._buffers, torch.Tensor.detach)):
                filled: Any = values
                filled |= {name: kind(_like(value)) for name, value in filled.items() if value is not None}
        images = torch.empty(size, height, width, channels).permute(0, 3, 1, 2)
        labels = torch.empty((size, height, width) if chosen.data == "shapes" else (size,), dtype=torch.int64)
        torch.compile(objective, dynamic=False, backend=backend)(
            images if channels_last else images.contiguous(), labels
        )
    return traced


def _like(value: torch.Tensor, device: str = "cpu") -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _pretend() -> None:
    """Tell torch of one H200, without a driver that would know of it."""
    native: Any = torch._C
    native._ensureCUDADeviceGuardSet()
    interface: Any = device_interface.CudaInterface
    answers: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "is_available": True,
            "is_initialized": False,
            "device_count": 1,
            "current_device": 0,
            "get_device_properties": H200,
            "get_device_capability": (9, 0),
            "is_bf16_supported": True,
            "synchronize": None,
            "get_rng_state": torch.zeros(1),
            "set_rng_state": None,
            "_exchange_device": 0,
            "_maybe_exchange_device": 0,
        },
        fake_tensor: {"init_gpu_context": None},
        _triton: {"triton_hash_with_backend": "none"},
        scheduler: {"has_triton": True},
    }
    for module, values in answers.items():
        for name, value in values.items():
            setattr(module, name, _answer(value))
    for name in ("current_device", "device_count", "get_device_properties", "synchronize"):
        setattr(interface, name, staticmethod(getattr(torch.cuda, name)))
    for name in ("exchange_device", "maybe_exchange_device", "get_raw_stream"):
        setattr(interface, name, staticmethod(_answer(0)))
    interface.Worker.get_device_properties = staticmethod(_answer(H200))
    interface.Worker.current_device = staticmethod(_answer(0))
    setattr(FakeTensorMode, "avoid_device_init", True)  # noqa: B010 -- a property of the class
    native._conv_determine_backend_memory_format = _memory_format  # cuDNN's answer, which is not there either


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _memory_format(images: torch.Tensor, *_: Any) -> torch.memory_format:
    nhwc = images.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if nhwc else torch.contiguous_format


def _lowered(module: Any, inputs: Any, backward: bool) -> None:
    """Have the graph written as a program for the GPU."""
    mode = FakeTensorMode()
    with mode:
        moved = [_like(each, "cuda") if isinstance(each, torch.Tensor) else each for each in inputs]
    for node in module.graph.nodes:
        if node.op == "call_function" and node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*moved)
    with tracing(TracingContext(mode)), V.set_fake_mode(mode):
        compile_fx.compile_fx_inner(module, moved, is_backward=backward, static_input_idxs=())


def kernels(program: str) -> Iterator[Kernel]:
    """Yield what one pass runs, in its order."""
    told = re.findall(r"'kernel_name': '(\w+)'.*'kernel_num_gb': ([\d.e+-]+)", program)
    moved = {name: 1e9 * float(gigabytes) for name, gigabytes in told}
    for name in re.findall(r"^\s+(triton_\w+)\.run\(", program, re.MULTILINE):
        kind = KINDS[name.split("_")[1]]
        yield Kernel(kind, name.removeprefix("triton_"), "", moved[name] / BYTES_PER_MILLISECOND)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=tuple(workloads.WORKLOADS), required=True)
    parser.add_argument("--precision", choices=PRECISIONS, default="bfloat16")
    parser.add_argument("--tuning", default="tuned")
    parser.add_argument("--batch-size", type=int, help="of one device")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument(
        "--lever", choices=[name for name in levers.LEVERS if not name.startswith("jax")], default="none"
    )
    parser.add_argument("--kernels", type=int, default=0, help="print so many of those that move most")
    parser.add_argument("--plain", action="store_true", help="the model of plain_torch.py; needs torchvision")
    asked = parser.parse_args()
    if torch.version.cuda is None:
        parser.error(f"torch {torch.__version__} is a build without CUDA; allowed: one with it, such as torch 2.11.0")
    levers.LEVERS[asked.lever]()
    found = [list(kernels(program)) for program in programs(asked)]
    for name, each in zip(("forward", "backward"), found, strict=True):
        print(name, *table(each, asked.kernels), sep="\n")
    print("both", *table([*chain(*found)], 0), sep="\n")


if __name__ == "__main__":
    main()
