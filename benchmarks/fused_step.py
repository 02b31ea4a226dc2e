"""Time steps with and without fused-batch-norm, in turns, with one process for each contender.

    python -m benchmarks.fused_step --backends torch jax

`--only multiply` adds a contender that uses no other kernel.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from compare.kernels import plans

_TUNINGS = ("tuned", "tuned+fused-batch-norm")
_BLOCK_SECONDS = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["torch", "jax"])
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", action="store_true", help="profile the fused contenders at the end")
    parser.add_argument("--only", action="append", default=[], help="add torch with this kernel alone")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _serve(options)
        return
    begun = time.monotonic()
    children = {f"{b}:{t}": _start(b, t, options) for b, t in itertools.product(options.backends, _TUNINGS)}
    children |= {f"torch:{_TUNINGS[1]}, {k}": _start("torch", _TUNINGS[1], options, k) for k in options.only}
    ready: dict[str, subprocess.Popen[str]] = {}
    for name, child in children.items():
        answer = _read(child)
        print(f"{time.monotonic() - begun:6.1f} s {name}: {answer or 'failed'}", flush=True)
        if answer is None:
            print("\n".join(Path(_log(name)).read_text().splitlines()[-25:]), flush=True)
        else:
            ready[name] = child
    times: dict[str, list[float]] = {name: [] for name in ready}
    for number in range(options.rounds):
        for name in list(ready)[:: 1 if number % 2 else -1]:
            times[name].append(_ask(ready[name], "block")["milliseconds"])
            print(f"{time.monotonic() - begun:6.1f} s {name:36} {times[name][-1]:8.4f} ms", flush=True)
    for name, values in times.items():
        print(
            f"{name:36} median {statistics.median(values):8.4f} ms, {min(values):.4f} to {max(values):.4f}", flush=True
        )
    for backend in options.backends:
        pair = [times.get(f"{backend}:{tuning}") for tuning in _TUNINGS]
        if all(pair):
            ratios = [new / old for old, new in zip(*pair, strict=True)]  # type: ignore[misc]
            print(f"{backend}: fused / plain {statistics.median(ratios):.4f}, {min(ratios):.4f} to {max(ratios):.4f}")
    for name, child in ready.items():
        if options.kernels:
            print(name, _ask(child, "kernels")["table"], sep="\n", flush=True)
        assert child.stdin is not None
        child.stdin.close()
        child.wait(20)


def _log(name: str) -> str:
    return f"/tmp/fused_step.{name.replace(':', '-').replace(', ', '')}.log"


def _start(backend: str, tuning: str, options: argparse.Namespace, only: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.fused_step", "--child", backend, tuning]
    command += ["--workload", options.workload, "--precision", options.precision]
    command += ["--batch-size", str(options.batch_size)] if options.batch_size else []
    command += ["--only", only] if only else []
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with Path(_log(f"{backend}:{tuning}{only}")).open("w") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )


def _read(child: "subprocess.Popen[str]") -> Any:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):
            return json.loads(line)
    return None


def _ask(child: "subprocess.Popen[str]", request: str) -> Any:
    assert child.stdin is not None
    child.stdin.write(request + "\n")
    child.stdin.flush()
    return _read(child)


def _serve(options: argparse.Namespace) -> None:
    from benchmarks import in_process, kernel_times  # the parent needs no framework

    if options.only:
        devices = plans.DEVICES.items()
        plans.DEVICES = {name: {p: b for p, b in table.items() if p[0] in options.only} for name, table in devices}
    backend, tuning = options.child
    worker = in_process.open_worker(
        backend, tuning, options.workload, precision=options.precision, device="cuda", batch_size=options.batch_size
    )
    first = worker.warm_up(0.1, None)
    session = worker._open_session
    losses = [round(float(loss), 4) for loss in session.losses()[:6]]
    print(json.dumps({"first_step_seconds": round(first.first_step_seconds, 1), "losses": losses}), flush=True)
    steps = 0
    for line in sys.stdin:
        if line.strip() == "kernels":
            kernels = session.kernels(10)
            table = kernel_times.table(kernels, 10, 0.03, 30)
            print(json.dumps({"table": table}), flush=True)
            continue
        steps = steps or worker.warm_up(_BLOCK_SECONDS, None).steps_per_block
        print(json.dumps({"milliseconds": 1e3 * worker.block(steps) / steps}), flush=True)


if __name__ == "__main__":
    main()
