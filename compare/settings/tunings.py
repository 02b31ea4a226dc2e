"""Tunings: the knobs of a contender as a user writes them, and the named sets of them.

A tuning is written NAME or NAME+KNOB[=VALUE]+..., where NAME is `stock`, `compiled` or `tuned` and may be left out
(then the knobs start from `stock`). A knob that a framework, workload or device cannot honour is refused by name.
"""

from collections.abc import Collection, Mapping, Sequence

from compare.base.errors import suggest
from compare.base.interface import INFER, TRAIN, Refused
from compare.base.knobs import (
    KNOBS,
    NOT_PARALLEL,
    PARALLEL_WORDS,
    REMOVED,
    Knob,
    Value,
    has_knobs,
)
from compare.settings import conflicts

_TO_SEARCH = tuple(knob.name for knob in KNOBS.values() if knob.adds_search)
_TO_COMPILE = (*_TO_SEARCH, *(knob.name for knob in KNOBS.values() if knob.adds_compilation))

STOCK, BEST = "stock", "best"
TUNINGS: Mapping[str, str] = {
    "stock": "what the framework's own tutorial gives",
    "compiled": "stock and the compiler",
    "tuned": "the fastest known for the workload and device, of its own in some precisions and over some devices",
    BEST: "the fastest that samestep tune has found here for the workload, and certified",
    "ahead-of-time": "only for --task infer: as tuned, but a process loads a program that was compiled before",
}

# Flax's tutorials jit the training step, so `stock` is already compiled in JAX, and `compiled` adds donated buffers.
GIVEN: Mapping[tuple[str, str], Mapping[str, Value]] = {
    ("jax", "stock"): {"compile": True},
    ("jax", "compiled"): {"compile": True, "donation": True},
    ("torch", "stock"): {},
    ("torch", "compiled"): {"compile": True},
}

_GRAPHS: Mapping[str, Mapping[str, Value]] = {
    "jax": {"compile": True, "donation": True, "graph-capture": True},
    "torch": {
        "compile": True,
        "channels-last": True,
        "fused-optimizer": True,
        "graph-capture": True,
        "kernel-search": True,
    },
}


def _captured(backend: str, steps: int, *switches: str) -> dict[str, Value]:
    return {**_GRAPHS[backend], "steps-per-dispatch": steps, **dict.fromkeys(switches, True)}


# The fastest known for requests, and for programs that are compiled ahead of time, by (tuning, backend, device).
INFERRED: Mapping[tuple[str, str, str], Mapping[str, Value]] = {
    ("tuned", "jax", "cpu"): {"compile": True, "fold-batch-norm": True, "inline-dispatch": True},
    ("tuned", "torch", "cpu"): {"channels-last": True, "fold-batch-norm": True},
    ("tuned", "jax", "cuda"): {"compile": True, "fold-batch-norm": True, "graph-capture": True},
    ("tuned", "torch", "cuda"): {
        "compile": True,
        "channels-last": True,
        "fold-batch-norm": True,
        "fused-convolutions": True,
        "graph-capture": True,
        "kernel-search": True,
    },
    **{
        ("ahead-of-time", backend, device): {
            "compile": True,
            "exported": True,
            "fold-batch-norm": True,
            **({"channels-last": True} if backend == "torch" else {"inline-dispatch": device == "cpu"}),
        }
        for backend in ("jax", "torch")
        for device in ("cpu", "cuda")
    },
}

_FROZEN: Mapping[str, Value] = {"compile": True, "fold-batch-norm": True, "constant-weights": True}

# `tuned` for requests of some workloads, by (backend, device, workload). On a CPU, TorchInductor packs weights, which
# makes deep models faster. XLA gains where the host limits a request, and each stored program then has the weights.
INFERRED_FOR: Mapping[tuple[str, str, str], Mapping[str, Value]] = {
    ("jax", "cpu", "digits-cnn"): {**_FROZEN, "inline-dispatch": True},
    ("jax", "cuda", "resnet50"): {**_FROZEN, "graph-capture": True},
    ("torch", "cpu", "cifar-resnet18"): {**_FROZEN, "channels-last": True},
    ("torch", "cpu", "mobilenet-v2"): _FROZEN,
}

EVERY_OTHER = "every other workload"
_NOTHING: Mapping[str, Value] = {}
_H200 = "benchmarks/h200"

# The fastest known, by (backend, device, workload or `WORKLOAD in PRECISION`), each with the file in which it was
# measured, None where it was not.
# A scan of convolutions is slower than single steps on XLA's CPU backend, a compiled model slower than eager kernels
# with PyTorch's. On a GPU a dispatch of one step leaves gaps, more than a few only make blocks long, and gaps are
# nothing to a step of 0.1 s.
TUNED: Mapping[tuple[str, str, str], tuple[Mapping[str, Value], str | None]] = {
    ("jax", "cpu", EVERY_OTHER): (GIVEN["jax", "compiled"], None),
    ("torch", "cpu", EVERY_OTHER): ({"channels-last": True, "fused-optimizer": True}, None),
    **{
        (backend, "cuda", workload): (_captured(backend, steps, *switches), evidence and f"{_H200}/{evidence}")
        for backend, workload, steps, switches, evidence in (
            ("jax", "resnet50", 8, ["concurrent-kernels"], "resnet50-bfloat16.zip"),
            ("torch", "resnet50", 8, [], "resnet50-bfloat16.zip"),
            ("jax", "cifar-cnn", 24, ["concurrent-kernels"], "cifar-cnn-bfloat16.zip"),
            ("torch", "cifar-cnn", 24, ["concurrent-kernels"], "cifar-cnn-bfloat16.zip"),
            ("jax", "convnext-tiny", 8, ["concurrent-kernels"], "tunings-convnext-tiny-bfloat16.zip"),
            ("torch", "convnext-tiny", 8, [], "tunings-convnext-tiny-bfloat16.zip"),
            ("jax", "mobilenet-v2", 8, ["concurrent-kernels"], "tunings-mobilenet-v2-bfloat16.zip"),
            ("torch", "mobilenet-v2", 8, [], "tunings-mobilenet-v2-bfloat16.zip"),
            ("jax", "unet", 1, [], "tunings-unet-bfloat16.zip"),
            ("torch", "unet", 1, [], "tunings-unet-bfloat16.zip"),
            ("jax", "vgg16", 1, ["concurrent-kernels"], "tunings-vgg16-float32.zip"),
            ("torch", "vgg16", 1, [], "tunings-vgg16-bfloat16.zip"),
            ("torch", "cifar-resnet18", 24, ["concurrent-kernels"], "tunings-cifar-resnet18-bfloat16.zip"),
            ("jax", EVERY_OTHER, 24, ["concurrent-kernels"], None),
            ("torch", EVERY_OTHER, 24, ["concurrent-kernels"], None),
        )
    },
    ("jax", "cuda", "vgg16 in bfloat16"): (GIVEN["jax", "compiled"], f"{_H200}/tunings-vgg16-bfloat16.zip"),
}

# What `tuned` has besides where batches are split over devices that synchronise batch norm, by (backend, device,
# workload), with the file in which it was measured.
SYNCHRONISED: Mapping[tuple[str, str, str], tuple[Mapping[str, Value], str]] = {
    ("jax", "cuda", "resnet50"): (
        {"overlap-exchanges": True, "overlap-reduction": True},
        f"{_H200}/scale-resnet50-jax/devices-2.zip",
    ),
    ("torch", "cuda", "resnet50"): (
        {"compiled-autograd": True, "overlap-exchanges": True},
        f"{_H200}/sides-resnet50-4-devices.zip",
    ),
}
_HIDING = {"compiled-autograd", "overlap-exchanges", "overlap-reduction"}
_OTHERWISE = {
    "jax": ("concurrent-kernels", "graph-capture", "rematerialisation"),
    "torch": ("concurrent-kernels", "rematerialisation"),
}
"""Knobs that exclude one of these, or with which they were not tried: who asks for one is given none of these."""


def resolve(
    backend: str,
    tuning: str,
    device: str,
    workload: str,
    precision: str | None = None,
    batch_norm: str = "sync",
    task: str = TRAIN,
) -> dict[str, Value]:
    """Return the value of every knob that `backend` has, for a tuning as a user writes it, on `cpu` or `cuda`.

    Knobs that are not for the `task` stay at their defaults.

    `tuned` depends on the workload, for some workloads on the precision, and over several devices on `batch_norm`. It
    leaves out knobs that conflict with those that the user wrote.

    Raises:
        Refused: for an unknown tuning, knob or value, or a knob that the backend or device has no switch for.
    """
    head, *rest = tuning.split("+")
    if head not in TUNINGS:
        head, rest = "stock", [head, *rest]
    without_knobs = not has_knobs(backend)
    if without_knobs and head != STOCK:
        raise Refused(f"{backend}:{tuning}: {backend} has no knobs; allowed: {backend} or {backend}:{STOCK}")
    values: dict[str, Value] = {
        knob.name: knob.default for knob in KNOBS.values() if without_knobs or knob.is_switch(backend)
    }
    if head == BEST:
        raise Refused(f"{backend}:{tuning}: no winner is kept; find one with: samestep tune {backend}")
    if head == "ahead-of-time" and task != INFER:
        raise Refused(f"{backend}:{tuning}: ahead-of-time needs --task infer; allowed: stock, compiled, tuned")
    named = _named(backend, head, device, workload, precision, task)
    values |= {name: value for name, value in named.items() if task in KNOBS[name].tasks}
    written, given = _read_knobs(backend, tuning, rest, task)
    values |= written
    may_be_together = values["parallel"] == NOT_PARALLEL and values.get(conflicts.find_concurrency_knob(backend))
    if task == TRAIN and head == "tuned" and values["parallel"] != NOT_PARALLEL and batch_norm == "sync":
        values |= _hiding(backend, device, workload, values, given)
    if "concurrent-kernels" not in given and not may_be_together:
        values["concurrent-kernels"] = False  # on several devices it has not been measured
    if "overlap-reduction" not in given and backend == "torch":
        values["overlap-reduction"] = values["parallel"] != NOT_PARALLEL  # as DistributedDataParallel has it
    conflicts.check(f"{backend}:{tuning}", backend, device, values, given)
    return values


def _read_knobs(backend: str, tuning: str, words: Sequence[str], task: str) -> tuple[dict[str, Value], set[str]]:
    """Return the values of the knobs that a user wrote and that the backend has, and the names of all written ones.

    Raises:
        Refused: as `resolve`.
    """
    where, values, given = f"{backend}:{tuning}", dict[str, Value](), set[str]()
    for item in words:
        check_word(item, where)
        name, _, text = item.partition("=") if item not in PARALLEL_WORDS else ("parallel", "", item)
        if name in TUNINGS:
            raise Refused(f"{where}: {name} is a tuning; allowed: one, before all knobs")
        if name in PARALLEL_WORDS:
            raise Refused(f"{where}: {name} takes no value; allowed: {name} alone")
        knob = KNOBS[name]
        if task not in knob.tasks:
            raise Refused(f"{where}: {name} is for --task {knob.tasks[0]}; allowed: without it")
        if name in given:
            raise Refused(f"{where} gives {name!r} twice; allowed: each knob once")
        given.add(name)
        value = _value(knob, text, where)
        if knob.is_switch(backend):
            values[name] = value
        elif bool(value) != (backend in knob.always):
            raise Refused(f"{where}: {backend} has no switch {name!r} ({knob.describe(backend)})")
    return values, given


def check_word(item: str, where: str, separator: str = "+") -> None:
    """Check that a part of a tuning begins as one can: with a tuning, a knob or a way to split batches.

    Args:
        item: the part.
        where: the whole text that the user wrote, for the message.
        separator: joins parts in that text.

    Raises:
        Refused: with `where`, for any other word, or none.
    """
    word, allowed = item.partition("=")[0], [*TUNINGS, *KNOBS, *PARALLEL_WORDS]
    if word in REMOVED:
        raise Refused(f"{where}: the knob {word} was removed; use {REMOVED[word]}")
    if word in allowed:
        return
    raise Refused(
        (f"unknown tuning or knob {word!r} in {where}" if word else f"{where} has an empty part")
        + f"; {suggest(word, allowed)}allowed: {', '.join(TUNINGS)}, or knobs joined by {separator!r}: "
        "`samestep knobs` lists them"
    )


def _named(
    backend: str, name: str, device: str, workload: str, precision: str | None, task: str
) -> Mapping[str, Value]:
    is_measured = (backend, device, workload) in INFERRED_FOR and precision != "float64"  # oneDNN has no float64
    if task == INFER and name == "tuned" and is_measured:
        settings = INFERRED_FOR[backend, device, workload]
    elif task == INFER and (name, backend, device) in INFERRED:
        settings = INFERRED[name, backend, device]
    elif name == "tuned":
        keys = [(backend, device, each) for each in (f"{workload} in {precision}", workload, EVERY_OTHER)]
        settings = next((TUNED[key][0] for key in keys if key in TUNED), _NOTHING)
    else:
        settings = GIVEN.get((backend, name), {})
    # XLA searches unless it is told not to, cuDNN under PyTorch only when it is told to.
    return {"kernel-search": True, **settings} if backend == "jax" and device == "cuda" else settings


def _hiding(
    backend: str, device: str, workload: str, values: Mapping[str, Value], given: Collection[str]
) -> Mapping[str, Value]:
    """Return what `tuned` has besides where devices synchronise batch norm, unless something `given` excludes it."""
    besides = SYNCHRONISED.get((backend, device, workload))
    if besides is None or not values["compile"] or not _HIDING.isdisjoint(given):
        return _NOTHING
    return _NOTHING if any(name in given and values[name] for name in _OTHERWISE[backend]) else besides[0]


def _value(knob: Knob, text: str, where: str) -> Value:
    if isinstance(knob.default, bool):
        if text not in ("", "on", "off"):
            raise Refused(f"{where}: {knob.name}={text} is not allowed; allowed: on, off")
        return text != "off"
    if isinstance(knob.default, str):
        if text not in knob.words:
            raise Refused(f"{where}: {knob.name}={text} is not allowed; allowed: {', '.join(knob.words)}")
        return text
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 1000 or len(text) > 4:
        raise Refused(f"{where}: {knob.name}={text} is not allowed; allowed: a whole number from 1 to 1000")
    return int(text)


def reduce_compilation(backend: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return knobs of the same mathematics with which a session's first step comes soonest, however slow the next are.

    torch's operations need no compiler. JAX would compile each operation by itself, which takes longer than the step.
    """
    return _without(_TO_COMPILE, values) if backend == "torch" else drop_search(values)


def drop_search(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return knobs with which no kernels are timed against each other."""
    return _without(_TO_SEARCH, values)


def drop_parallel(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return knobs with which a contender uses one device."""
    return _without(("parallel", "overlap-reduction", "compiled-autograd", "overlap-exchanges"), values)


def searches_anew(backend: str, values: Mapping[str, Value]) -> bool:
    """Tell whether kernels are timed against each other in every process, whatever compiled programs it finds.

    cuDNN searches kernels anew in every process of torch. XLA keeps its choice in the compiled program.
    """
    return backend == "torch" and values["kernel-search"] is True


def keeps_search(backend: str, values: Mapping[str, Value], device: str) -> bool:
    """Tell whether kernels are timed against each other when a program is compiled, once for all that will find it."""
    if device != "cuda":
        return False
    return values["kernel-search"] is True if backend == "jax" else values.get("max-autotune") is True


def _without(names: Collection[str], values: Mapping[str, Value]) -> dict[str, Value]:
    return {name: KNOBS[name].default if name in names else value for name, value in values.items()}
