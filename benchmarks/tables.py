"""The tables of docs/h200.md, from the files under benchmarks/h200/ and nothing else; so with another GPU's.

python -m benchmarks.tables > docs/h200.md
python -m benchmarks.tables h100 > docs/h100.md
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import tuning_matrix
from compare.report.sentences import DASH
from compare.results import result_file
from compare.studies import scaling_result

FOLDER = Path(__file__).parent / "h200"
PAGE = FOLDER.parents[1] / "docs" / "h200.md"
GPUS = {"h200": "H200", "h100": "H100 (80 GB HBM3)"}
MEBIBYTE = 2**20

HEAD = """# Measured on an NVIDIA {gpu}

Written by `{command}` from the files under [benchmarks/{folder}](../benchmarks/{folder}), which samestep and
its benchmarks wrote themselves and nobody edited. Each result file holds its exact command, all raw samples, the
environment and the certificate tensor by tensor; the link gives its date.{history}
"""
HISTORY = {
    "h200": """ Files without telemetry were made before
samestep watched the GPU while it timed. A file that says of its checkout that it was `dirty` names the commit that the
machine's day began with, what ran was that or a later one of the day; from 2026-11-23, 10:00 on it is what ran, beside
new files of this kind. Certificates of `torch:tuned` made before 2026-11-22, 22:00 judged captured steps that copy each
batch, where the timed ones read batches in place; later ones judge what is timed. Idle power until then is too high
(measurements.md). Pool peaks of `torch:tuned` made before 2026-11-24, 04:00 are those of cuDNN's search for kernels
where that took more than a step does. Memory of JAX in files made before 2026-11-26, 14:45 has in it one more copy of
a model's parameters, of which torch kept none."""
}
TUNINGS = """
## Every tuning at a glance
Milliseconds per training step, of one `samestep compare` a row and the programs of its day; intervals, memory and
ratios are in the next table. Of an unproven time, and of one that is not there, the file says why, and the verdict is
INVALID; one round, of a run that was cut off, has no interval.{missing}

"""
TIMES = """
## Step times
Times are per training step, with their 95 % interval over rounds of fresh processes; the ratio is the contender's time
over the baseline's.

"""
TIME_COLUMNS = (
    "workload, batch",
    "data",
    "precision",
    "contender",
    "step (ms)",
    "images/s",
    "pool peak (MiB)",
    "ratio",
    "verdict",
    "agreement",
    "file",
)
BESIDE = """
## Beside plain loops
`python -m benchmarks.beside_plain`: samestep's tuned contenders and loops in the style of the public examples
(benchmarks/plain_torch.py, benchmarks/plain_jax.py), fresh processes in turn; medians over rounds. The ratio, with its
95 % interval, is to the plain loop that is fastest.

"""
BESIDE_COLUMNS = ("workload", "samestep", "step (ms)", "fastest plain loop", "step (ms)", "ratio", "file")
FITS = """
## Largest batch and smallest memory
`samestep fit`: most images of a step within the limit, and the least that the framework's allocator needs for the
workload's batch.

"""
FIT_COLUMNS = ("workload", "precision", "contender", "limit (MiB)", "largest batch", "batch", "needs (MiB)", "file")
SCALING = """
## Several devices
`samestep scale`: images per second of all devices together, and how much of as many times the first number's that is,
with its 95 % interval; the allocator's peak on one device; the time a step in which a device only communicates; whether
the contenders agree on that number of devices.{history}

"""
SCALING_HISTORY = {
    "h200": """ In files made before 2026-11-25, 10:30, `ddp` on one device was wrapped
in DistributedDataParallel and slower for it, so that its efficiencies are too high."""
}
SCALING_COLUMNS = (
    *("workload", "precision", "mode, batch", "batch norm"),
    *("contender", "devices", "images/s", "efficiency", "peak (MiB)", "exposed (ms)", "agreement", "file"),
)
CERTIFICATES = """
## Certificates
Every gate at its worst over all tensors and steps, with its limit in the head; then the median over tensors of each
side's error against its own float64 run. A certificate of `samestep agree` covers more batch and image sizes than one
that `samestep compare` makes before it times, and the gates of whole training runs; `update` is of `compare` alone, and
in files made before 2026-11-23, 10:00 another gate, at most 10.

"""
CERTIFICATE_GATES = ("semantic", "scaling", "precision", "update", "trajectory", "accuracy")
CERTIFICATE_COLUMNS = (
    "workload, batch",
    "precision",
    "made by, contenders",
    "semantic (at most 1e-10)",
    "scaling (at least 1e6)",
    "precision (at most 10)",
    "update (at most 2)",
    "trajectory (at most 3)",
    "accuracy (at most 0.01)",
    "median error of baseline, contender",
    "agreement",
    "file",
)


def main() -> None:
    name = (sys.argv[1:] or [FOLDER.name])[0]
    if name not in GPUS:
        sys.exit(f"no tables are made of {name!r}; allowed: {', '.join(GPUS)}")
    print(page(FOLDER.parent / name), end="")


def page(folder: Path) -> str:
    """Return the page for what a folder holds."""
    scalings = sorted(folder.glob("scale-*/result.json"))
    found = {path: result_file.load(path) for path in sorted(folder.glob("*/result.json")) if path not in scalings}
    times = [line for path, result in found.items() if _is_timed(result) for line in time_lines(path, result)]
    beside = [line for path in sorted(folder.glob("beside-plain-*.txt")) for line in beside_lines(path)]
    fits = [line for path in sorted(folder.glob("*/fit.json")) for line in fit_lines(path)]
    scaling = [line for path in scalings for line in scaling_lines(path)]
    certificates = [certificate_line(path, result) for path, result in found.items()]
    tunings = [_row(cells) for cells in tuning_matrix.rows(found, _link)]
    missing = tuning_matrix.missing(found)
    lacking = f" Not measured so yet, or not in every tuning: {missing}." if missing else ""
    tables = (
        (TUNINGS.format(missing=lacking), tuning_matrix.COLUMNS, tunings),
        (TIMES, TIME_COLUMNS, times),
        (BESIDE, BESIDE_COLUMNS, beside),
        (FITS, FIT_COLUMNS, fits),
        (SCALING.format(history=SCALING_HISTORY.get(folder.name, "")), SCALING_COLUMNS, scaling),
        (CERTIFICATES, CERTIFICATE_COLUMNS, certificates),
    )
    command = "python -m benchmarks.tables" + ("" if folder == FOLDER else f" {folder.name}")
    head = HEAD.format(gpu=GPUS[folder.name], command=command, folder=folder.name, history=HISTORY.get(folder.name, ""))
    return head + "".join(
        head + _row(columns) + _row(["---"] * len(columns)) + "".join(lines) for head, columns, lines in tables if lines
    )


def _is_timed(result: dict[str, Any]) -> bool:
    """Whether it is of a comparison that came as far as its rounds."""
    return bool(result["comparisons"]) and any(each["step_seconds"] for each in result["contenders"])


def beside_lines(path: Path) -> list[str]:
    """Return a line for every ratio that `benchmarks.beside_plain` has printed."""
    text, lines = path.read_text(), list[str]()
    found = re.findall(r"^(\S+) (\S.*?) +([\d.]+) ms per step", text, re.MULTILINE)
    times = {name: milliseconds for _, name, milliseconds in found}
    for ours, plain, ratio in re.findall(r"^(\S+) / (.+): ([\d.]+ \(.+\))$", text, re.MULTILINE):
        link = f"[{path.name}](../benchmarks/{path.parent.name}/{path.name})"
        lines.append(_row([found[0][0], f"`{ours}`", times[ours], plain, times[plain], ratio, link]))
    return lines


def fit_lines(path: Path) -> list[str]:
    """Return a line for every contender of a `samestep fit`."""
    result: dict[str, Any] = json.loads(path.read_text())
    spec = result["spec"]
    return [
        _row(
            [
                spec["workload"],
                spec["precision"],
                f"`{each['name']}`",
                _mebibytes(spec["memory_limit_bytes"]),
                _count(each["largest_batch"]),
                str(spec["batch_size"]),
                _mebibytes(each["smallest_memory_bytes"]),
                _link(path, result),
            ]
        )
        for each in result["contenders"]
    ]


def scaling_lines(path: Path) -> list[str]:
    """Return a line for every contender of a `samestep scale` on every number of devices."""
    result = scaling_result.load(path)
    spec, link = result["spec"], _link(path, result)
    head = [spec["workload"], spec["precision"], f"{spec['mode']}, {spec['batch_size']}", spec["batch_norm"]]
    return [
        _row(
            [
                *head,
                f"`{each['contender']}`",
                str(each["devices"]),
                _count(each["images_per_second"]),
                _interval(each["efficiency"], 1),
                _mebibytes(each["memory_per_device_bytes"]),
                DASH if each["communication_seconds"] is None else f"{1e3 * each['communication_seconds']:.2f}",
                each["agreement"],
                link,
            ]
        )
        for each in result["scaling"]
    ]


def time_lines(path: Path, result: dict[str, Any]) -> list[str]:
    spec, ratios = result["spec"], {each["contender"]: each for each in result["comparisons"]}
    lines: list[str] = []
    for contender in result["contenders"]:
        step, comparison = contender["step_seconds"], ratios.get(contender["name"])
        cells = [
            f"{spec['workload']}, {spec['batch_size']}",
            spec["data_source"].split(" (")[0],
            spec["precision"],
            f"`{contender['name']}`",
            _interval(step and step["interval"], 1e3),
            _count(None if step is None else contender["images_per_second"]),
            _mebibytes((contender["memory"] or {}).get("pool_peak_bytes")),
            "baseline" if comparison is None else _interval(comparison["ratio"], 1),
            DASH if comparison is None else comparison["verdict"],
            result["agreement"]["status"],
            _link(path, result),
        ]
        lines.append(_row(cells))
    return lines


def certificate_line(path: Path, result: dict[str, Any]) -> str:
    spec, agreement = result["spec"], result["agreement"]
    gates = {gate["name"]: gate["value"] for gate in agreement["gates"]}
    devices = spec.get("devices", 1)
    over = f" on {devices} devices" if devices > 1 else ""
    cells = [
        f"{spec['workload']}, {spec['batch_size']}",
        spec["precision"],
        f"{result['command'][1]}, {' '.join(f'`{name}`' for name in spec['contenders'])}{over}",
        *(_figure(gates.get(name)) for name in CERTIFICATE_GATES),
        ", ".join(_figure(_median_error(agreement, side)) for side in ("baseline_error", "contender_error")),
        agreement["status"],
        _link(path, result),
    ]
    return _row(cells)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _median_error(agreement: dict[str, Any], side: str) -> float | None:
    errors = [each[side] for pair in agreement["pairs"] for each in pair["tensors"] if each[side] is not None]
    return median(errors) if errors else None


def _interval(interval: dict[str, float] | None, scale: float) -> str:
    if interval is None:
        return DASH
    estimate, low, high = (f"{scale * interval[key]:.3f}" for key in ("estimate", "low", "high"))
    return f"{estimate} ({low} to {high})"


def _mebibytes(value: int | None) -> str:
    return _count(None if value is None else value / MEBIBYTE)


def _count(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def _figure(value: float | None) -> str:
    return DASH if value is None else f"{value:.2g}"


def _link(path: Path, result: dict[str, Any]) -> str:
    return f"[{result['created'][:10]}](../benchmarks/{path.parent.parent.name}/{path.parent.name}/{path.name})"


if __name__ == "__main__":
    main()
