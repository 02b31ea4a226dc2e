"""The environment of a result as tables: the facts that readers ask for first, and everything that was recorded."""

from collections.abc import Iterator, Mapping, Sequence

from compare.base.typed_json import Json
from compare.report.document import Table
from compare.report.sentences import DASH
from compare.results.model import Environment

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
    "packages.torch",
    "packages.triton",
    "packages.jax",
    "packages.jaxlib",
    "packages.flax",
    "packages.optax",
    "packages.nvidia-cudnn-cu12",
    "packages.nvidia-cudnn-cu13",
    "packages.numpy",
)

_LONGEST_VALUE = 200  # letters of an environment variable in the table of the first facts


def make_tables(environment: Environment, inputs: Mapping[str, str | None]) -> tuple[Table, Table]:
    """Return the table of the first facts with the `inputs` (seed and hashes), and the table of everything."""
    facts = dict(_flatten("", environment.extra))
    rows = [(name, facts[name]) for name in _FIRST if facts.get(name, DASH) != DASH]
    rows += [
        (name, value) for name, value in facts.items() if name.startswith("variables.") and len(value) <= _LONGEST_VALUE
    ]
    rows += [(name, value or DASH) for name, value in inputs.items()]
    heads = ("fact", "value")
    everything = list(facts.items())
    return (
        Table("first", "Environment, seed and hashes of all inputs.", heads, rows, prose=True),
        Table("everything", "Everything recorded of the environment.", heads, everything, prose=True, detail=True),
    )


def _flatten(path: str, value: Json) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of every value. A list of plain values becomes one text."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(f"{path}.{key}" if path else key, item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(item, (Mapping, list, tuple)) for item in value):
            for index, item in enumerate(value):
                yield from _flatten(f"{path}[{index}]", item)
        else:
            yield path, ", ".join(map(_text, value)) or DASH
    else:
        yield path, _text(value)


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return DASH
    return f"{value:,}" if isinstance(value, int) else str(value)
