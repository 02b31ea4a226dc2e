"""Plant causes of slowness in torch's step on a GPU, and print what explains each one. Explain clean pairs too.

python -m benchmarks.planted_causes --workload cifar-cnn

A clean pair is one contender twice. It must have no finding.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import in_process
from compare.base.profiles import Peaks
from compare.explain import findings, host_events, step_table
from compare.explain.findings import Side

_STEPS = 5
_CLEAN = "channels-last+fused-optimizer+kernel-search"
_LARGE = 4096
"""A batch at which the GPU limits a step, so that slow kernels show. At the default one Python limits it."""

Plant = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """A cause: a change within the planted side's step, or a knob that it lacks, or the other side's precision."""

    cause: str
    plant: Plant | None = None
    without: str = ""
    precision: str = "float32"
    against: str = ""
    workload: str = ""
    batch_size: int | None = None
    on_a_cpu: bool = True


_CASES = (
    Case("nothing"),
    Case("an extra cast to float32", lambda x: [x := x.double().float() for _ in range(20)][-1]),
    Case("a sleep of the host", lambda x: (time.sleep(0.02), x)[1]),
    Case("a wait within the step", lambda x: (float(x.detach().sum()), torch.cuda.synchronize(), x)[2], on_a_cpu=False),
    Case("a slow layer", lambda x: [x := x.sin() for _ in range(200)][-1]),
    Case("an unfused optimizer", without="fused-optimizer", workload="vgg16", batch_size=16),
    Case("a layout change", without="channels-last", precision="bfloat16", batch_size=_LARGE, on_a_cpu=False),
    Case("no search for kernels", without="kernel-search", batch_size=_LARGE, on_a_cpu=False),
    Case("TF32 off on one side", against="tf32", batch_size=_LARGE, on_a_cpu=False),
)
_CLEAN_PAIRS = tuple(
    (workload, tuning, precision)
    for workload in ("cifar-cnn", "cifar-resnet18")
    for tuning, precision in (
        ("stock", "float32"),
        ("stock", "bfloat16"),
        ("compiled", "float32"),
        ("compiled", "bfloat16"),
        (_CLEAN, "float32"),
    )
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="cifar-cnn")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    clean = _CLEAN if on_gpu else "fused-optimizer"
    for case in _CASES:
        if not (on_gpu or case.on_a_cpu):
            continue
        workload, size = (case.workload or options.workload, case.batch_size) if on_gpu else (options.workload, None)
        tuning = clean.replace(case.without, f"{case.without}=off") if case.without else clean
        sides = [
            explain("planted", workload, tuning, case.precision, options.device, size, case.plant),
            explain("clean", workload, clean, case.against or case.precision, options.device, size),
        ]
        _print(case.cause, sides)
    for workload, tuning, precision in _CLEAN_PAIRS:
        size = _LARGE if on_gpu else None
        pair = [explain(name, workload, tuning, precision, options.device, size) for name in ("first", "second")]
        _print(f"nothing ({workload}, {tuning}, {precision})", pair)


def _print(cause: str, sides: Sequence[Side]) -> None:
    times = " and ".join(f"{1e3 * side.table.step_seconds:.3g} ms" for side in sides)
    print(f"== {cause}: {times}")
    for finding in findings.find(sides):
        print(f"   {finding.contender}: {finding.text}", flush=True)


def explain(
    name: str,
    workload: str,
    tuning: str,
    precision: str,
    device: str,
    batch_size: int | None = None,
    plant: Plant | None = None,
) -> Side:
    """Return a contender's side of an explanation, with a cause planted into its pooling layer or its last layer."""
    worker = in_process.open_worker(
        "torch", tuning, workload, precision=precision, device=device, batch_size=batch_size
    )
    session: Any = worker._open_session
    if plant is not None:
        layers = session._modules()
        layer = layers.get("pool") or list(layers.values())[-1]
        plain = layer.forward
        layer.forward = lambda images: plain(plant(images))
    session.watch()
    session.run(_STEPS)
    session.wait()
    profile = session.profile(_STEPS)
    start = time.perf_counter()
    session.run(_STEPS)
    session.wait()
    seconds = (time.perf_counter() - start) / _STEPS
    start = time.perf_counter()
    session.run(1)
    host = time.perf_counter() - start
    session.wait()
    try:
        operations = session.operations()
    except RuntimeError:
        operations = ()  # a planted wait reads a value, which a traced step does not have
    table = step_table.build(seconds, profile, None, operations, Peaks())
    knobs, settings = dict(session._spec.knobs), session.settings()
    return Side(name, "torch", table, knobs, settings, host, host_events.read(profile), device)


if __name__ == "__main__":
    main()
