"""Where a result was measured, as a table: the facts that a reader asks for first, and everything that was recorded."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from compare.report.document import Table
from compare.report.sentences import DASH

_FIRST = (
    "samestep",
    "git.commit",
    "git.dirty",
    "python",
    "platform",
    "cpu.model",
    "cpu.usable_cores",
    "memory_bytes",
    "nvidia.gpus[0].name",
    "nvidia.gpus[0].memory_bytes",
    "nvidia.gpus[0].power_limit_watts",
    "nvidia.driver",
    "nvidia.cuda_driver",
    *(
        f"packages.{name}"
        for name in (
            "torch",
            "triton",
            "jax",
            "jaxlib",
            "flax",
            "optax",
            "nvidia-cudnn-cu12",
            "nvidia-cudnn-cu13",
            "numpy",
        )
    ),
)


def tables(result: Mapping[str, Any]) -> tuple[Table, Table]:
    """Return the table of the first facts, seeds and hashes included, and that of everything."""
    spec = result["spec"]
    every = list(_flat("", result["environment"]))
    known = dict(every)
    rows = [(name, known[name]) for name in _FIRST if known.get(name, DASH) != DASH]
    rows += [(name, value) for name, value in every if name.startswith("variables.")]
    rows.append(("seed", str(spec["seed"])))
    if "data_source" in spec:  # of a scaling, each number of devices has its own
        rows += [("data", spec["data_source"]), ("data, SHA-256", spec["data_sha256"])]
        rows.append(("initial weights, SHA-256", spec["weights_sha256"] or DASH))
    heads = ("what", "value")
    return (
        Table("first", "Environment, seed and hashes of what went in.", heads, rows, prose=True),
        Table("everything", "Everything that was recorded of the environment.", heads, every, prose=True, detail=True),
    )


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of every value; a list of plain values is one text."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from _flat(f"{path}.{key}" if path else key, item)
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in cast("list[Any]", value)):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _flat(f"{path}[{index}]", item)
    elif isinstance(value, list):
        yield path, ", ".join(_text(item) for item in cast("list[Any]", value)) or DASH
    else:
        yield path, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return DASH
    return f"{value:,}" if isinstance(value, int) else str(value)
