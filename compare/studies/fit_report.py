"""The report that a person reads in a terminal after `samestep fit`: `render`."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from compare.base.interface import shortened
from compare.report import columns
from compare.report.sentences import DASH, printable

_MEBIBYTE = 2**20
_REASON_LENGTH = 160

_LIMITS = {
    "cpu": "what the process may hold beyond what it holds after the framework's import, counted as Linux counts data "
    "(RLIMIT_DATA): private writable memory, the compiler's and the stacks of threads included. What a step needs "
    "changes from process to process: in torch by about 2 %, in JAX, which runs operations side by side, by about 10 %",
    "cuda": "what the framework's allocator may take of the GPU (torch.cuda.set_per_process_memory_fraction, "
    "XLA_CLIENT_MEM_FRACTION, which counts from slightly less than NVML's total); the CUDA context and what libraries "
    "take by themselves are not counted",
}


def render(result: Mapping[str, Any], console: Console) -> None:
    """Print the object of `fit.json` (`compare.studies.fitting`): a table, what stopped each search, and definitions."""

    def say(text: str) -> None:
        console.print(Text(printable(text)))

    spec = result["spec"]
    image = "x".join(map(str, spec["image"]))
    say(f"{spec['workload']} on {spec['device']} in {spec['precision']}: synthetic {image} images, seed {spec['seed']}")
    say("")
    _print_table(result, console)
    for part in (_remarks(result), _definitions(spec)):
        say("")
        for line in part:
            say(line)


def _print_table(result: Mapping[str, Any], console: Console) -> None:
    spec = result["spec"]
    titles = (
        "",
        f"largest batch in {_mebibytes(spec['memory_limit_bytes'])} MiB",
        "stopped by",
        f"smallest memory for batch {spec['batch_size']:,} (MiB)",
    )
    rows = [
        (each["name"], _largest(each), _stopped(each), _mebibytes(each["smallest_memory_bytes"]))
        for each in result["contenders"]
    ]
    columns.show(titles, rows, console, prose=(0, 2), right=(1, 2, 3))


def _largest(contender: Mapping[str, Any]) -> str:
    if contender["largest_batch"] is None:
        return DASH
    known = contender["stopped_by"] == "memory"
    return f"{'' if known else 'at least '}{contender['largest_batch']:,}"


def _stopped(contender: Mapping[str, Any]) -> str:
    match contender["stopped_by"]:
        case "memory":
            return f"memory: {contender['smallest_failed_batch']:,} does not fit"
        case "cap":
            return "8 GiB of images on the host"
        case status:
            return str(status)


def _remarks(result: Mapping[str, Any]) -> Iterator[str]:
    """Say what failed, and how the nearest tries that did not fit ended."""
    for each in result["contenders"]:
        if each["status"] != "ok":
            yield f"{each['name']}: {each['status']}, {each['reason']}"
        spec = result["spec"]
        for size, limit in (
            (each["smallest_failed_batch"], spec["memory_limit_bytes"]),
            (spec["batch_size"], each["largest_failed_memory_bytes"]),
        ):
            for attempt in each["tries"]:
                if not attempt["fitted"] and (attempt["batch_size"], attempt["memory_limit_bytes"]) == (size, limit):
                    reason = shortened(attempt["reason"], _REASON_LENGTH)
                    yield f"{each['name']}: batch {size:,} in {_mebibytes(limit)} MiB: {reason}"


def _definitions(spec: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"largest batch: most images a step with which a fresh process trained {spec['steps']} steps within the limit; "
        "the smallest number seen not to fit is less than 1 % above it"
    )
    yield (
        f"smallest memory: least limit within which a fresh process trained {spec['steps']} steps of batch "
        f"{spec['batch_size']:,}, to 2 % or 1 MiB"
    )
    yield f"limit: {_LIMITS[spec['device']]}"


def _mebibytes(value: int | None) -> str:
    return DASH if value is None else f"{value / _MEBIBYTE:,.1f}"
