"""Print the report of `samestep fit`."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from compare.base.errors import make_printable, shorten
from compare.report import columns
from compare.report.sentences import DASH
from compare.studies.fit_result import Fit, FitContender, FitSpec

_MEBIBYTE = 2**20
_REASON_LENGTH = 160

_LIMITS = {
    "cpu": "data of the process (RLIMIT_DATA: private writable memory, of the compiler and of thread stacks too) "
    "beyond those after the framework's import. A step's need varies from process to process: in torch by about 2 %, "
    "in JAX, which runs operations side by side, by about 10 %",
    "cuda": "memory of the framework's allocator (torch.cuda.set_per_process_memory_fraction; XLA_CLIENT_MEM_FRACTION, "
    "of slightly less than NVML's total). The CUDA context and allocations of libraries do not count",
}


def render(fit: Fit, console: Console) -> None:
    """Print a table, the reasons that stopped each search, and definitions."""

    def print_line(text: str) -> None:
        console.print(Text(make_printable(text)))

    spec = fit.spec
    image = "x".join(map(str, spec.image))
    print_line(f"{spec.workload} on {spec.device} in {spec.precision}: synthetic {image} images, seed {spec.seed}")
    print_line("")
    _print_table(fit, console)
    for part in (_remarks(fit), _definitions(spec)):
        print_line("")
        for line in part:
            print_line(line)


def _print_table(fit: Fit, console: Console) -> None:
    spec = fit.spec
    titles = (
        "",
        f"largest batch in {_mebibytes(spec.memory_limit_bytes)} MiB",
        "stopped by",
        f"smallest memory for batch {spec.batch_size:,} (MiB)",
    )
    rows = [
        (each.name, _largest_batch(each), _stopped_by(each), _mebibytes(each.smallest_memory_bytes))
        for each in fit.contenders
    ]
    columns.show(titles, rows, console, prose=(0, 2), right=(1, 2, 3))


def _largest_batch(contender: FitContender) -> str:
    if contender.largest_batch is None:
        return DASH
    is_exact = contender.stopped_by == "memory"
    return f"{'' if is_exact else 'at least '}{contender.largest_batch:,}"


def _stopped_by(contender: FitContender) -> str:
    match contender.stopped_by:
        case "memory":
            return f"memory: {contender.smallest_failed_batch:,} does not fit"
        case "cap":
            return "8 GiB of images on the host"
        case status:
            return status


def _remarks(fit: Fit) -> Iterator[str]:
    """Yield failures, and the reasons why the nearest tries did not fit."""
    spec = fit.spec
    for contender in fit.contenders:
        if contender.status != "ok":
            yield f"{contender.name}: {contender.status}, {contender.reason}"
        for size, limit in (
            (contender.smallest_failed_batch, spec.memory_limit_bytes),
            (spec.batch_size, contender.largest_failed_memory_bytes),
        ):
            for attempt in contender.tries:
                if not attempt.fitted and (attempt.batch_size, attempt.memory_limit_bytes) == (size, limit):
                    reason = shorten(attempt.reason or "", _REASON_LENGTH)
                    yield f"{contender.name}: batch {size:,} in {_mebibytes(limit)} MiB: {reason}"


def _definitions(spec: FitSpec) -> Iterator[str]:
    yield (
        f"largest batch: most images per step with which a fresh process trained {spec.steps} steps within the limit; "
        "the smallest number that did not fit is less than 1 % larger"
    )
    yield (
        f"smallest memory: smallest limit within which a fresh process trained {spec.steps} steps of batch "
        f"{spec.batch_size:,}, to 2 % or 1 MiB"
    )
    yield f"limit: {_LIMITS[spec.device]}"


def _mebibytes(value: int | None) -> str:
    return DASH if value is None else f"{value / _MEBIBYTE:,.1f}"
