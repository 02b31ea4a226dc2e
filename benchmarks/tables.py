"""Make the page of measured figures from the evidence in benchmarks/ and from nothing else.

python -m benchmarks.tables > docs/reference/measured.md
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compare.base.workloads import WORKLOADS
from compare.reproduce import archive, bundle
from compare.results import model, result_file

EVIDENCE = Path(__file__).parent
PAGE = EVIDENCE.parent / "docs" / "reference" / "measured.md"
GPUS = {"h200": "H200", "h100": "H100"}
PRECISIONS = ("float32", "tf32", "bfloat16")
CONTENDERS = tuple(f"{backend}:{tuning}" for backend in ("torch", "jax") for tuning in ("stock", "compiled", "tuned"))
DASH = "\N{EN DASH}"

HEAD = """# Measured on GPUs

`python -m benchmarks.tables` writes this page from the files under `benchmarks/h200` and `benchmarks/h100`.
samestep and the scripts in `benchmarks` wrote those files. Some got keys that later versions added, and no figure was
edited. A zip file is a bundle: `samestep verify FILE` checks it, and `samestep report FILE` prints it. It holds its
date, its command, all samples, the environment, the certificate, and the knobs of each contender. `tuned` may have
other knobs today. All figures are of an NVIDIA H200 unless the row names an H100.
"""
TUNINGS = """
## Every tuning
Milliseconds per training step. One row is one `samestep compare` of all six contenders with a certificate that passes.
"""
COMPARISONS = """
## Comparisons of tuned contenders
The ratio is the contender's step time divided by that of the first contender, with its 95 % interval.
"""
SUGGESTIONS = """
## What `samestep explain` suggests
Gains are milliseconds per step. `--try` measured them with a certificate, in the same rounds as the contender.
"""
BESIDE = """
## Beside plain loops
`python -m benchmarks.beside_plain` times samestep's tuned contenders beside loops in the style of the public examples.
The ratio is to the fastest of those loops. Below 1, samestep's program is faster.
"""
REQUESTS = """
## Requests
`samestep compare --task infer`: forward passes in evaluation mode. p50 and p99 are milliseconds of single requests,
p50 with its interval. The ratio is to the p50 of the first contender.
"""
BESIDE_REQUESTS = """
## Requests beside plain loops
`python -m benchmarks.beside_plain_requests` times requests beside loops in the style of the public examples. The
figures are p50 in milliseconds, and the ratio is to the fastest of those loops.
"""
SCALING = """
## Several devices
`samestep scale` in weak scaling: every device has the same number of images, and batch norm is synchronised.
Efficiency is the speed on N devices divided by N times the speed on one. Exposed is the time per step in which a
device only communicates.
"""
FITS = """
## Largest batch
`samestep fit` finds the most images per step within a memory limit, and the memory that the default batch needs.
"""
CERTIFICATES = """
## Certificates in float16
`samestep agree` on whole training runs. A number is the worst value over all tensors and steps. Each limit stands in
the head of its column.
"""
CERTIFICATE_GATES = {
    "semantic": "at most 1e-10",
    "scaling": "at least 1e6",
    "precision": "at most 10",
    "trajectory": "at most 3",
    "accuracy": "at most 0.01",
}


def main() -> None:
    print(page(), end="")


def page() -> str:
    """Return the page for all evidence."""
    every = {path: load(path) for path in sorted(EVIDENCE.glob("h*/*.zip"))}
    bundles = {path: result for path, result in every.items() if result["spec"]["task"] == "train"}
    requests = list(request_rows({path: result for path, result in every.items() if path not in bundles}))
    beside_requests = list(beside_request_rows())
    certificates = {path: result for path, result in bundles.items() if not result["spec"]["rounds"]}
    return "".join(
        (
            HEAD,
            TUNINGS,
            table(
                ("workload, batch", "precision", *(f"`{name}`" for name in CONTENDERS), "file"), tuning_rows(bundles)
            ),
            COMPARISONS,
            table(
                ("workload, batch", "precision", "contender", "step (ms)", "images/s", "ratio", "verdict", "file"),
                comparison_rows(bundles),
            ),
            SUGGESTIONS,
            table(
                (
                    *("workload, batch", "precision", "contender", "step (ms)", "unattributed"),
                    *("suggestion", "predicted", "measured", "file"),
                ),
                suggestion_rows(bundles),
            ),
            BESIDE,
            table(("workload", "samestep", "ms", "fastest plain loop", "ms", "ratio", "file"), beside_rows()),
            *((REQUESTS, table(("workload", "precision", *REQUEST_HEADS, "file"), iter(requests))) if requests else ()),
            *(
                (
                    BESIDE_REQUESTS,
                    table(
                        ("workload", "batch", "samestep", "ms", "fastest plain loop", "ms", "ratio", "file"),
                        iter(beside_requests),
                    ),
                )
                if beside_requests
                else ()
            ),
            SCALING,
            table(
                ("workload, batch", "contender", "devices", "images/s", "efficiency", "exposed (ms)", "file"),
                scaling_rows(),
            ),
            FITS,
            table(
                ("workload, precision", "contender", "limit (MiB)", "largest batch", "needs (MiB)", "file"), fit_rows()
            ),
            CERTIFICATES,
            table(
                ("workload, batch", *(f"{gate} ({limit})" for gate, limit in CERTIFICATE_GATES.items()), "file"),
                (certificate_row(path, result) for path, result in certificates.items()),
            ),
        )
    )


def load(path: Path) -> Mapping[str, Any]:
    """Return the result in a bundle."""
    return model.to_json(result_file.parse(archive.unpack(path.read_bytes(), bundle.MEMBERS)[bundle.RESULT]))


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def tuning_rows(bundles: Mapping[Path, Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield a row for each bundle of all six contenders, in the order of workloads and precisions."""
    places = [(workload, precision) for workload in WORKLOADS for precision in PRECISIONS]
    all_six = {place_of(result): path for path, result in bundles.items() if is_of_all_tunings(result)}
    for place in places:
        if place in all_six:
            path = all_six[place]
            contenders = {contender["name"]: contender for contender in bundles[path]["contenders"]}
            yield [*place_cells(bundles[path]), *(step_time(contenders[name]) for name in CONTENDERS), file_cell(path)]


def comparison_rows(bundles: Mapping[Path, Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield a row for each contender of the bundles that compare tuned contenders only."""
    for path, result in bundles.items():
        if not result["comparisons"] or is_of_all_tunings(result) or "explanation" in result:
            continue
        ratios = {comparison["contender"]: comparison for comparison in result["comparisons"]}
        for contender in result["contenders"]:
            comparison = ratios.get(contender["name"])
            yield [
                *place_cells(result, on=GPUS[path.parent.name]),
                f"`{contender['name']}`",
                interval(contender["step_seconds"]["interval"], 1e3),
                f"{contender['images_per_second']:,.0f}",
                "baseline" if comparison is None else interval(comparison["ratio"], 1),
                DASH if comparison is None else comparison["verdict"],
                file_cell(path),
            ]


def suggestion_rows(bundles: Mapping[Path, Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield a row for each suggestion that was tried."""
    for path, result in bundles.items():
        explained = result.get("explanation") or {"findings": []}
        for finding in explained["findings"]:
            name, measured = finding["contender"], finding.get("measured_milliseconds")
            if measured is None:
                continue
            yield [
                *place_cells(result),
                f"`{name}`",
                f"{explained['step_milliseconds'][name]:.2f}",
                f"{1 - explained['attributed_share'][name]:.1%}",
                f"`{finding['knob']}`",
                f"{finding['predicted_milliseconds']:.2f}",
                f"{measured:.2f}",
                file_cell(path),
            ]


def beside_rows() -> Iterator[Sequence[str]]:
    """Yield a row for each ratio that `benchmarks.beside_plain` printed."""
    for path in sorted(EVIDENCE.glob("h*/beside-plain-*.txt")):
        text = path.read_text()
        medians = re.findall(r"^(\S+) (\S.*?) +([\d.]+) ms per step", text, re.MULTILINE)
        times = {name: milliseconds for _, name, milliseconds in medians}
        for ours, plain, ratio in re.findall(r"^(\S+) / (.+): ([\d.]+ \(.+\))$", text, re.MULTILINE):
            yield [f"`{medians[0][0]}`", f"`{ours}`", times[ours], f"`{plain}`", times[plain], ratio, file_cell(path)]


REQUEST_HEADS = ("batch", "contender", "p50 (ms)", "p99 (ms)", "images/s", "cold start (s)", "ratio", "verdict")


def request_rows(bundles: Mapping[Path, Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield a row for each batch size of each contender that answered requests."""
    for path, result in bundles.items():
        ratios = {(each["contender"], each["batch_size"]): each for each in result["comparisons"]}
        for size in result["spec"]["batch_sizes"]:
            for contender in result["contenders"]:
                latency, comparison = contender["latency"][str(size)], ratios.get((contender["name"], size))
                figures = {"p99": latency["p99"] and 1e3 * latency["p99"], "rate": latency["images_per_second"]}
                cold = contender["latency"][str(min(result["spec"]["batch_sizes"]))]["cold_start_seconds"]
                yield [
                    f"`{result['spec']['workload']}`",
                    result["spec"]["precision"],
                    str(size),
                    f"`{contender['name']}`",
                    interval(latency["intervals"].get("p50"), 1e3),
                    DASH if figures["p99"] is None else f"{figures['p99']:.3f}",
                    DASH if figures["rate"] is None else f"{figures['rate']:,.0f}",
                    DASH if cold is None else f"{cold:.1f}",
                    "baseline" if comparison is None else interval(comparison["ratio"], 1),
                    DASH if comparison is None else comparison["verdict"],
                    file_cell(path),
                ]


def beside_request_rows() -> Iterator[Sequence[str]]:
    """Yield a row for each ratio that `benchmarks.beside_plain_requests` printed."""
    for path in sorted(EVIDENCE.glob("h*/beside-requests-*.txt")):
        lines = path.read_text().splitlines()
        for line, ratio in itertools.pairwise(lines):
            found = re.fullmatch(r"(\S+) batch (\d+): (\S+) ([\d.]+) ms, (.+) ([\d.]+) ms", line)
            if found:
                workload, size, ours, milliseconds, plain, theirs = found.groups()
                values = [f"`{ours}`", milliseconds, f"`{plain}`", theirs, ratio.partition(": ")[2]]
                yield [f"`{workload}`", size, *values, file_cell(path)]


def scaling_rows() -> Iterator[Sequence[str]]:
    """Yield a row for each contender of a `samestep scale` on each number of devices."""
    for path in sorted(EVIDENCE.glob("h*/scale-*/result.json")):
        result = json.loads(path.read_text())
        for entry in result["scaling"]:
            exposed = entry["communication_seconds"]
            yield [
                f"`{result['spec']['workload']}` {result['spec']['batch_size']}",
                f"`{entry['contender']}`",
                str(entry["devices"]),
                f"{entry['images_per_second']:,.0f}",
                interval(entry["efficiency"], 1),
                DASH if exposed is None else f"{1e3 * exposed:.2f}",
                file_cell(path),
            ]


def fit_rows() -> Iterator[Sequence[str]]:
    """Yield a row for each contender of a `samestep fit`."""
    for path in sorted(EVIDENCE.glob("h*/*/fit.json")):
        result = json.loads(path.read_text())
        spec = result["spec"]
        for contender in result["contenders"]:
            yield [
                f"`{spec['workload']}` {spec['precision']}",
                f"`{contender['name']}`",
                mebibytes(spec["memory_limit_bytes"]),
                f"{contender['largest_batch']:,}",
                mebibytes(contender["smallest_memory_bytes"]),
                file_cell(path),
            ]


def certificate_row(path: Path, result: Mapping[str, Any]) -> Sequence[str]:
    values = {gate["name"]: gate["value"] for gate in result["agreement"]["gates"]}
    figures = [DASH if values.get(name) is None else f"{values[name]:.2g}" for name in CERTIFICATE_GATES]
    return [place_cells(result)[0], *figures, file_cell(path)]


def is_of_all_tunings(result: Mapping[str, Any]) -> bool:
    return set(CONTENDERS) <= {contender["name"] for contender in result["contenders"]}


def place_of(result: Mapping[str, Any]) -> tuple[str, str]:
    return result["spec"]["workload"], result["spec"]["precision"]


def place_cells(result: Mapping[str, Any], on: str = "H200") -> Sequence[str]:
    workload, precision = place_of(result)
    devices = result["spec"].get("devices", 1)
    where = f" on {devices} {on}" if devices > 1 else ""
    return [f"`{workload}` {result['spec']['batch_size']}{where}", precision]


def step_time(contender: Mapping[str, Any]) -> str:
    """Return milliseconds, in parentheses if no interval covers them."""
    step = contender["step_seconds"]
    if step is None:
        return DASH
    if step["interval"] is None:
        return f"({1e3 * step['median']:.3f})"
    return f"{1e3 * step['interval']['estimate']:.3f}"


def interval(bounds: Mapping[str, float] | None, scale: float) -> str:
    if bounds is None:
        return DASH
    estimate, low, high = (f"{scale * bounds[key]:.3f}" for key in ("estimate", "low", "high"))
    return f"{estimate} ({low} to {high})"


def mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f}"


def file_cell(path: Path) -> str:
    return f"`{path.relative_to(EVIDENCE.parent)}`"


if __name__ == "__main__":
    main()
