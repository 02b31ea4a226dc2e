"""The command line's options that several commands share: one type and one help text each."""

from pathlib import Path
from typing import Annotated

import typer

from compare.base.interface import Refused

_ROUNDS = 10


def path(text: str) -> Path:
    """Return the path that a user names, of a file or folder.

    Raises:
        Refused: for no name, which would be the current folder, and for `-`, which stands for standard
            output or input elsewhere.
    """
    if text in ("", "-"):
        raise Refused(f"{text!r} is no name of a file or folder; allowed: one as ./x")
    return Path(text)


Contenders = Annotated[
    list[str] | None,
    typer.Argument(
        help="BACKEND[:TUNING], the first being the baseline; BACKEND is torch or jax, TUNING stock, compiled, tuned "
        "or knobs joined by '+'. Default: torch jax.",
        show_default=False,
    ),
]
WORKLOAD = typer.Option(help="What to train; `samestep workloads` lists them. Default: digits-cnn.", show_default=False)
WorkloadName = Annotated[str, WORKLOAD]
Tuning = Annotated[
    str | None, typer.Option(help="Tuning of every contender that names none. Default: compiled.", show_default=False)
]
Knobs = Annotated[
    str | None,
    typer.Option(
        help="Knobs, joined by ',', in place of --tuning; `samestep knobs` lists them.",
        metavar="KNOB[=VALUE],...",
        show_default=False,
    ),
]
BatchSize = Annotated[int | None, typer.Option(help="Images per step, over all devices. Default: the workload's.")]
Accumulate = Annotated[
    int, typer.Option(help="Micro-batches of a step: equal parts of the batch, one after the other.")
]
Devices = Annotated[
    int, typer.Option(help="Devices that each batch is split over, by the contenders that say how (--parallel).")
]
Parallel = Annotated[
    str | None,
    typer.Option(
        help="How contenders that do not say so split a batch over devices: pmap or sharded for jax, ddp for torch; "
        "one for each, joined by ','.",
        metavar="WAY,...",
        show_default=False,
    ),
]
BatchNorm = Annotated[
    str,
    typer.Option(help="Batch norm over devices: sync (statistics of the whole batch) or local (each device's part)."),
]
DeviceCounts = Annotated[
    str, typer.Option("--devices", help="Numbers of devices, joined by ','; the others are held against the first.")
]
Rounds = Annotated[int | None, typer.Option(help="Rounds of fresh processes. Default: 10.", show_default=False)]
Paper = Annotated[bool, typer.Option("--paper", help="20 rounds.")]
Precision = Annotated[str, typer.Option(help="float64, float32, tf32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training set. Default: the workload's.")]
Seed = Annotated[int, typer.Option(help="Fixes weights, data split and shuffles.")]
Data = Annotated[
    str | None,
    typer.Option(
        help="Folder of the data set in its original format, or of photographs, one folder a class; "
        "`samestep workloads` says which workload takes one."
    ),
]
Images = Annotated[
    int | None,
    typer.Option(
        help="Training images, drawn by the seed, of a folder of photographs with more; of its test images the same "
        "share. Default: all.",
        show_default=False,
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        help="Seconds that any phase of a contender may take. Default: 300 to start, up to 7200 to train.",
        show_default=False,
    ),
]
MemoryLimit = Annotated[
    int | None,
    typer.Option(
        "--memory",
        metavar="MIB",
        help="Memory in which the largest batch is searched for. Default: all of a GPU's, half of what is available "
        "on a CPU.",
        show_default=False,
    ),
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Deterministic algorithms; running twice must be equal bit for bit.")
]
SkipColdCompile = Annotated[
    bool,
    typer.Option(
        "--skip-cold-compile",
        help="Measure no compile time into an empty cache: a framework's contenders share one, and on a GPU torch's "
        "compile side by side, where its memory holds them. Minutes less for large models.",
    ),
]
SearchAnew = Annotated[
    bool,
    typer.Option(
        "--search-anew",
        help="Have XLA search for kernels in every round, as cuDNN does for torch, so that intervals contain what a "
        "search chooses: JAX, and torch with +max-autotune, then compile in every round.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(parser=path, metavar="DIR", help="Folder for the result file. Default: samestep-out/TIME."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result object alone.")]


def rounds_asked(rounds: int | None, quick: bool, paper: bool) -> int:
    """Return the rounds that --rounds, --quick and --paper ask for.

    Raises:
        Refused: for two of them at once.
    """
    found = {} if rounds is None else {"--rounds": rounds}
    found |= ({"--quick": 5} if quick else {}) | ({"--paper": 20} if paper else {})
    if len(found) > 1:
        raise Refused(
            f"{' and '.join(list(found)[-2:])} exclude each other; allowed: one of --rounds, --quick, --paper"
        )
    return next(iter(found.values()), _ROUNDS)
