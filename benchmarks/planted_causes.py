"""Plant causes of slowness in torch's step on a GPU, and print what explains each one. Explain clean pairs too.

python -m benchmarks.planted_causes --workload cifar-cnn

A clean pair is one contender twice. It must have no finding.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks import in_process
from compare.base.profiles import Peaks
from compare.explain import findings, host_events, step_table
from compare.explain.findings import Side

_STEPS = 5
_CLEAN = "channels-last+fused-optimizer+kernel-search"
_CLEAN_PAIRS = [
    (workload, tuning, precision)
    for workload in ("cifar-cnn", "digits-cnn")
    for tuning, precision in (
        ("stock", "float32"),
        ("stock", "bfloat16"),
        ("compiled", "float32"),
        ("compiled", "bfloat16"),
        (_CLEAN, "float32"),
    )
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="cifar-cnn")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    clean = _CLEAN if on_gpu else "fused-optimizer"
    causes: list[tuple[str, str, str, Callable[[Any], Any] | None]] = [
        ("nothing", clean, "float32", None),
        ("an extra cast to float32", clean, "float32", lambda x: [x := x.double().float() for _ in range(20)][-1]),
        ("a sleep of the host", clean, "float32", lambda x: (time.sleep(0.02), x)[1]),
        ("a wait within the step", clean, "float32", lambda x: (float(x.sum()), torch.cuda.synchronize(), x)[2]),
        ("a slow layer", clean, "float32", lambda x: [x := x.sin() for _ in range(200)][-1]),
        ("an unfused optimizer", clean.replace("fused-optimizer", "fused-optimizer=off"), "float32", None),
    ]
    if on_gpu:
        causes += [
            ("a layout change", clean.replace("channels-last", "channels-last=off"), "bfloat16", None),
            ("no search for kernels", clean.replace("kernel-search", "kernel-search=off"), "bfloat16", None),
            ("TF32 off on one side", clean, "float32", None),
        ]
    else:
        del causes[3]
    for cause, tuning, precision, plant in causes:
        other = "tf32" if cause.startswith("TF32") else precision
        sides = [
            explain("planted", tuning, precision, options, plant),
            explain("clean", clean, other, options, None),
        ]
        _print(cause, sides)
    for workload, tuning, precision in _CLEAN_PAIRS:
        options.workload = workload
        pair = [explain(name, tuning, precision, options, None) for name in ("first", "second")]
        _print(f"nothing ({workload}, {tuning}, {precision})", pair)


def _print(cause: str, sides: Sequence[Side]) -> None:
    times = " and ".join(f"{1e3 * side.table.step_seconds:.3g} ms" for side in sides)
    print(f"== {cause}: {times}")
    for finding in findings.find(sides):
        print(f"   {finding.contender}: {finding.text}", flush=True)


def explain(name: str, tuning: str, precision: str, options: Any, plant: Callable[[Any], Any] | None) -> Side:
    """Return a contender's side of an explanation, with a cause planted into its pooling layer or its last layer."""
    worker = in_process.open_worker("torch", tuning, options.workload, precision=precision, device=options.device)
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
    return Side(name, "torch", table, knobs, settings, host, host_events.read(profile), options.device)


if __name__ == "__main__":
    main()
