"""The optimisation switches: one name each, and what it does in either framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compare.base import compiler_flags
from compare.base.compiler_flags import NO_FLAGS
from compare.base.interface import INFER, TASKS, TRAIN, Value

_TRAIN, _INFER = (TRAIN,), (INFER,)

NOT_PARALLEL = "none"
PARALLEL: Mapping[str, Sequence[str]] = {"jax": ("pmap", "sharded"), "torch": ("ddp",)}
"""The ways of each backend to train on several devices."""
_A_PROCESS_EACH = ("ddp",)


@dataclass(frozen=True)
class Knob:
    """One switch. To add one, add an entry to `_ALL`, and its mechanism in each backend that can switch it.

    Attributes:
        name: as a user writes it in a tuning.
        summary: the effect, in one line.
        default: its value in `stock` if no tuning says otherwise.
        mechanism: what it does, by backend that can switch it.
        always: why it is always on, by backend.
        never: why it does not exist, by backend.
        words: the allowed values of a knob whose default is a word.
        required_device: the only device on which it can be on; None if it can be on everywhere.
        adds_compilation: whether it makes the first step later because more is compiled.
        adds_search: whether it makes the first step later because kernels are timed against each other.
        tasks: the tasks that it is for (`compare.base.interface.TASKS`).
    """

    name: str
    summary: str
    default: Value
    mechanism: Mapping[str, str]
    always: Mapping[str, str]
    never: Mapping[str, str] = field(default_factory=dict[str, str])
    words: Sequence[str] = ()
    required_device: str | None = None
    adds_compilation: bool = False
    adds_search: bool = False
    tasks: Sequence[str] = TASKS

    def is_switch(self, backend: str) -> bool:
        """Return whether a backend can switch it."""
        return backend in self.mechanism

    def describe(self, backend: str) -> str:
        """Return what the knob does in a framework, or why it cannot be switched there."""
        if backend in self.mechanism:
            return self.mechanism[backend]
        if backend in self.always:
            return f"always on: {self.always[backend]}"
        return f"none: {self.never.get(backend, f'{backend} has no knobs')}"


_ALL = (
    Knob(
        "compile",
        "compile the training step",
        False,
        {"jax": "jax.jit of the whole step (off: op by op)", "torch": "torch.compile of model and loss"},
        {},
        adds_compilation=True,
    ),
    Knob(
        "pieces",
        "compile the step in pieces, alike ones once: a deep model compiles in a fraction of the time",
        False,
        {"jax": "jax.jit of each convolution or product with what follows it, in place of the whole step"},
        {},
        {"torch": "its operations are compiled already"},
        tasks=_TRAIN,
    ),
    Knob(
        "channels-last",
        "keep images and kernels in NHWC memory order",
        False,
        {"torch": "model and images .to(memory_format=torch.channels_last)"},
        {"jax": "images and kernels are NHWC"},
    ),
    Knob(
        "fused-optimizer",
        "update all parameters in one kernel",
        False,
        {"torch": "optimizer(fused=True)"},
        {"jax": "the update is inside the jitted step"},
        tasks=_TRAIN,
    ),
    Knob(
        "donation",
        "let the step overwrite its input state",
        False,
        {"jax": "jax.jit(donate_argnums=0)"},
        {"torch": "updates are in place"},
        tasks=_TRAIN,
    ),
    Knob(
        "steps-per-dispatch",
        "training steps started by one call from Python",
        1,
        {"jax": "lax.scan over the steps", "torch": "that many steps captured in one CUDA graph"},
        {},
        adds_compilation=True,
        tasks=_TRAIN,
    ),
    Knob(
        "graph-capture",
        "replay the step as a CUDA graph",
        False,
        {
            "jax": "XLA command buffers, convolutions included, and loops, or the exchanges of several GPUs",
            "torch": "torch.cuda.graph around the whole step",
        },
        {},
        required_device="cuda",
        adds_compilation=True,
    ),
    Knob(
        "concurrent-kernels",
        "run kernels that do not need one another's results together",
        False,
        {
            "jax": "side by side in a command buffer (--xla_gpu_command_buffer_scheduling_mode=CONCURRENT)",
            "torch": "several small ones as one: torch._inductor.config.combo_kernels",
        },
        {},
        required_device="cuda",
        adds_compilation=True,
    ),
    Knob(
        "kernel-search",
        "time several kernels and keep the fastest",
        False,
        {"jax": "XLA's autotuning (off: --xla_gpu_autotune_level=0)", "torch": "torch.backends.cudnn.benchmark"},
        {},
        required_device="cuda",
        adds_search=True,
    ),
    Knob(
        "max-autotune",
        "have the compiler time its own kernels, templates and block sizes: compiles for minutes",
        False,
        {"torch": "what torch.compile's mode max-autotune-no-cudagraphs sets; graphs are graph-capture"},
        {},
        {"jax": "kernel-search is all that XLA searches by itself"},
        adds_search=True,
    ),
    Knob(
        "compiler-flags",
        "one of a short list of flags for the compiler, which `samestep tune` tries one after the other",
        NO_FLAGS,
        {
            "jax": "flags of XLA: on a CPU fast-math, concurrent; on a GPU latency-hiding, cublaslt, no-triton-gemm",
            "torch": "variables of TorchInductor: cpp-wrapper; on a GPU also multi-kernel",
        },
        {},
        words=compiler_flags.WORDS,
        adds_compilation=True,
    ),
    Knob(
        "kept-heap",
        "keep freed memory of the C library in the process: large tensors need no new pages in every step",
        False,
        dict.fromkeys(("jax", "torch"), "variables of glibc: MALLOC_MMAP_MAX_=0 and a high MALLOC_TRIM_THRESHOLD_"),
        {},
        required_device="cpu",
    ),
    Knob(
        "rematerialisation",
        "keep each block's input alone and compute the block again in the backward pass: less memory, more work",
        False,
        {
            "jax": "jax.checkpoint of every block, each by itself",
            "torch": "torch.utils.checkpoint of every block, each by itself",
        },
        {},
        tasks=_TRAIN,
    ),
    Knob(
        "fused-batch-norm",
        "let 1x1 convolutions of bottlenecks take batch norm's passes along, in Triton kernels for an NVIDIA H200",
        False,
        {
            "jax": "one source (compare/kernels), called by jax-triton, for shapes where it was measured to win",
            "torch": "one source (compare/kernels), as custom operators, for shapes where it was measured to win",
        },
        {},
        required_device="cuda",
        adds_compilation=True,
        tasks=_TRAIN,
    ),
    Knob(
        "fold-batch-norm",
        "multiply each convolution's kernel by the batch norm behind it, which is then no work of its own",
        False,
        {
            "jax": "kernel and shift folded in float64; batch norm only adds its shift",
            "torch": "kernel and bias folded in float64; batch norm passes its input on",
        },
        {},
        tasks=_INFER,
    ),
    Knob(
        "fused-convolutions",
        "let the kernel of a convolution add its bias and a residual, and apply ReLU",
        False,
        {"torch": "aten::cudnn_convolution_relu and aten::cudnn_convolution_add_relu, where ReLU alone reads a result"},
        {},
        {"jax": "XLA decides by itself what it fuses"},
        required_device="cuda",
        tasks=_INFER,
        adds_compilation=True,
    ),
    Knob(
        "inline-dispatch",
        "compute in the caller's thread: a small request waits for no other thread",
        False,
        {"jax": "jax_cpu_enable_async_dispatch=False"},
        {"torch": "operations run in the caller's thread"},
        required_device="cpu",
        tasks=_INFER,
    ),
    Knob(
        "constant-weights",
        "make the weights constants of the compiled program: a call passes only images, and the compiler may rearrange",
        False,
        {
            "jax": "jax.jit of a function that closes over the weights",
            "torch": "torch._inductor.config.freezing: on a CPU, weights packed for oneDNN",
        },
        {},
        tasks=_INFER,
        adds_compilation=True,
    ),
    Knob(
        "exported",
        "load a program that was exported and compiled before: a process compiles nothing",
        False,
        {
            "jax": "jax.jit(...).lower().compile(), serialised (jax.experimental.serialize_executable)",
            "torch": "torch.export and AOTInductor's package (torch._inductor.aoti_compile_and_package)",
        },
        {},
        tasks=_INFER,
        adds_compilation=True,
    ),
    Knob(
        "input",
        "resident: batches wait on the device; stream: on the host, and come over while others train",
        "resident",
        {
            "jax": "stream: jax.device_put of the next dispatch's batches before this one's steps",
            "torch": "stream: the next dispatch's batches through pinned memory and a copy stream",
        },
        {},
        words=("resident", "stream"),
        tasks=_TRAIN,
    ),
    Knob(
        "overlap-reduction",
        "reduce gradients over the devices while the backward pass computes others",
        False,
        {
            "jax": "XLA's latency-hiding scheduler on several devices (--xla_gpu_enable_latency_hiding_scheduler=true)",
            "torch": "as DistributedDataParallel does, on with ddp (off: one compiled program, not one a bucket)",
        },
        {},
        tasks=_TRAIN,
    ),
    Knob(
        "compiled-autograd",
        "compile the backward pass with the reduction of gradients in it",
        False,
        {"torch": "torch._dynamo.compiled_autograd and DistributedDataParallel's python_reducer, joined in buckets"},
        {},
        {"jax": "jax.grad is in the compiled step"},
        adds_compilation=True,
        tasks=_TRAIN,
    ),
    Knob(
        "overlap-exchanges",
        "compute gradients of weights while the devices exchange those of batch norm's moments",
        False,
        {
            "jax": "batch norm's gradient waits for the next kernel's; its exchange does not, nor is it captured",
            "torch": "a pass over TorchInductor's graph has them between an exchange, begun early, and the wait for it",
        },
        {},
        adds_compilation=True,
        tasks=_TRAIN,
    ),
    Knob(
        "parallel",
        "split each batch over --devices: data-parallel training; written by its value alone, as in jax:tuned+sharded",
        NOT_PARALLEL,
        {
            "jax": "pmap: jax.pmap, a process a machine; sharded: jax.jit with jax.sharding.NamedSharding, likewise",
            "torch": "ddp: torch.nn.parallel.DistributedDataParallel, a process a device",
        },
        {},
        words=(NOT_PARALLEL, "pmap", "sharded", "ddp"),
        tasks=_TRAIN,
    ),
)

KNOBS: Mapping[str, Knob] = {knob.name: knob for knob in _ALL}

REMOVED: Mapping[str, str] = {
    "pointwise-matmul": "tuned, which is within 1 % of it on the five workloads that were measured",
}
"""Knobs that samestep once had, each with its replacement."""


def has_knobs(backend: str) -> bool:
    """Return whether a backend has any knob. A backend that an installed package adds has none."""
    return any(knob.is_switch(backend) for knob in KNOBS.values())


PARALLEL_WORDS = tuple(word for words in PARALLEL.values() for word in words)


def count_processes(way: Value, devices: int) -> int:
    """Return how many processes of one machine train on its `devices` in a way of `PARALLEL`."""
    return devices if way in _A_PROCESS_EACH else 1
