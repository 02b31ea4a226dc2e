"""A contender as a row of pytest-benchmark's table, and the machine as pytest-benchmark describes it.

Nothing is timed here. pytest-benchmark gets a timer that replays the times of a contender's blocks. So each of its
rounds is one block's time per step, to the last bit.
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import cycle
from typing import Any

import pytest

from compare.plugin.result import Contender, Result

_REPORTED = pytest.StashKey[list[str]]()
"""The comparisons of a test that have rows, by the result file."""


class Recording:
    """Measured times, and a clock that replays them."""

    def __init__(self, blocks: Sequence[float]) -> None:
        self._blocks = cycle(blocks)
        self._now = 0.0
        self._read = False

    def clock(self) -> float:
        """Return the replayed seconds. pytest-benchmark uses this as its timer."""
        self._read = True
        return self._now

    def rewind(self) -> None:
        """Set the clock to 0, so that a round is exactly one block, without the rounding of a sum."""
        self._now = 0.0

    def play(self) -> None:
        """Move the clock by the next block's time.

        Raises:
            RuntimeError: pytest-benchmark has never read this clock, so another timer would time this function.
        """
        if not self._read:
            raise RuntimeError(
                "`benchmark` was in use before the row; let the test take `contender` before `benchmark`"
            )
        self._now += next(self._blocks)


def replay(request: pytest.FixtureRequest, result: Result, contender: Contender) -> None:
    """Let pytest-benchmark report a contender's blocks under the name of the calling test.

    The row's group names workload, precision and batch, unless the test's own `benchmark` marker names a group. Without
    pytest-benchmark, or with it disabled, there is no row.
    """
    if not request.config.pluginmanager.hasplugin("pytest-benchmark"):
        return
    recording = Recording(contender.blocks)
    request.node.stash.setdefault(_REPORTED, []).append(str(result.path))
    own = request.node.get_closest_marker("benchmark")
    settings: dict[str, Any] = {"group": _name_group(result), **(own.kwargs if own else {}), "timer": recording.clock}
    request.node.add_marker(pytest.mark.benchmark(**settings), append=False)
    benchmark: Any = request.getfixturevalue("benchmark")
    if benchmark.disabled:
        benchmark.pedantic(recording.rewind)
        return
    benchmark.extra_info.update(_extra(result, contender))
    benchmark.pedantic(recording.play, setup=recording.rewind, rounds=len(contender.blocks))


def replay_all(request: pytest.FixtureRequest, result: Result) -> None:
    """Let pytest-benchmark report a row for each contender of a comparison that a test has made by a call.

    A row is named after the test and the contender. From a test's second comparison on, its number comes before the
    contender. A comparison whose rows the fixture `contender` or an earlier call has made gets no further row.
    """
    session: Any = getattr(request.config, "_benchmarksession", None)
    if session is None or session.skip or session.disabled:
        return
    done = request.node.stash.setdefault(_REPORTED, [])
    if str(result.path) in done:
        return
    done.append(str(result.path))
    number = f"{len(done)}-" if len(done) > 1 else ""
    for contender in result.contenders:
        if contender.blocks and result.comparable(contender.name):
            _make_row(request, session, result, contender, f"{number}{contender.name}")


def _make_row(request: pytest.FixtureRequest, session: Any, result: Result, contender: Contender, label: str) -> None:
    """Make a row as the fixture `benchmark` does, which a test can have only once."""
    fixtures: Any = import_module("pytest_benchmark.fixture")
    node: Any = request.node
    recording, own = Recording(contender.blocks), node.get_closest_marker("benchmark")
    timer = fixtures.NameWrapper(recording.clock)
    settings: dict[str, Any] = {"group": _name_group(result), **(own.kwargs if own else {}), "timer": timer}
    row = fixtures.BenchmarkFixture(
        node,
        add_stats=session.benchmarks.append,
        logger=session.logger,
        warner=node.warn,
        disabled=False,
        **{**session.options, **settings},
    )
    row.name, row.fullname = _add_label(node.name, label), _add_label(node.nodeid, label)
    row.param = "-".join(filter(None, (row.param, label)))
    row.params = {**(row.params or {}), "contender": contender.name}
    row.extra_info.update(_extra(result, contender))
    row.pedantic(recording.play, setup=recording.rewind, rounds=len(contender.blocks))


def _add_label(name: str, label: str) -> str:
    """Return the name of a test with one more parameter."""
    return f"{name.removesuffix(']')}-{label}]" if name.endswith("]") else f"{name}[{label}]"


def _name_group(result: Result) -> str:
    spec = result.typed.spec
    batch = f"batch {spec.batch_size}" if spec.batch_sizes is None else f"requests of batch {spec.batch_sizes[0]}"
    return f"{spec.workload} {spec.precision} {batch}"


def _extra(result: Result, contender: Contender) -> dict[str, Any]:
    from compare.base import typed_json

    against = {} if contender.name == result.baseline else _against(result, contender.name)
    times = next(each.step_seconds for each in result.typed.contenders if each.name == contender.name)
    return {
        "samestep": result.typed.id,
        "contender": contender.name,
        "agreement": result.agreement,
        "memory": dict(contender.memory),
        "compile_seconds": contender.compile_seconds,
        "images_per_second": contender.images_per_second,
        "steps_per_block": times.steps_per_block if times else 1,
        **(
            {"latency": {size: each._asdict() for size, each in contender.latency.items()}} if contender.latency else {}
        ),
        "voided": typed_json.write(result.typed.voided),
        **against,
    }


def _against(result: Result, name: str) -> dict[str, Any]:
    from compare.base import typed_json

    comparison = next(entry for entry in result.typed.comparisons if entry.contender == name)
    ratio = typed_json.write(comparison.ratio)
    return {"baseline": comparison.baseline, "ratio": ratio, "verdict": comparison.verdict}


def describe_machine() -> dict[str, Any]:
    """Return this machine's GPUs, driver and versions of frameworks and libraries, as JSON types.

    pytest-benchmark stores it as machine info. It has only facts that stay the same from run to run.
    """
    from compare.machine import environment, nvml

    nvidia = nvml.describe()
    versions = {name: environment.find_version(name) for name in environment.DISTRIBUTIONS}
    return {
        "gpus": [gpu["name"] for gpu in nvidia["gpus"]],
        "driver": nvidia["driver"],
        "cuda_driver": nvidia["cuda_driver"],
        "packages": {name: version for name, version in versions.items() if version is not None},
    }
