"""A contender as a row of pytest-benchmark's table: its measured blocks, played back on a clock of their own.

The children have measured; nothing is timed here. pytest-benchmark is given a timer that stands still but for the
seconds of the block that is played, so that each of its rounds is a block's time per step, to the last bit.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest

from compare.plugin.result import Contender, Result


class Recording:
    """Measured times and the clock that they pass on."""

    def __init__(self, blocks: Sequence[float]) -> None:
        self._blocks = cycle(blocks)
        self._now = 0.0
        self._read = False

    def clock(self) -> float:
        """Return the scripted seconds; pytest-benchmark's timer."""
        self._read = True
        return self._now

    def rewind(self) -> None:
        """Begin anew at 0, so that no rounding of a sum comes between a block and its round."""
        self._now = 0.0

    def play(self) -> None:
        """Let the next block's time pass.

        Raises:
            RuntimeError: where the clock was never read: another timer would time the playing itself.
        """
        if not self._read:
            raise RuntimeError(
                "`benchmark` was in use before the row; let the test take `contender` before `benchmark`"
            )
        self._now += next(self._blocks)


def replay(request: pytest.FixtureRequest, result: Result, contender: Contender) -> None:
    """Have pytest-benchmark report a contender's blocks under the name of the test that asks.

    The row's group says workload, precision and batch, unless the test's own `benchmark` marker names one. Where
    pytest-benchmark is not there, or disabled, there is no row.
    """
    if not request.config.pluginmanager.hasplugin("pytest-benchmark"):
        return
    recording = Recording(contender.blocks)
    spec = result.raw["spec"]
    own = request.node.get_closest_marker("benchmark")
    group = f"{spec['workload']} {spec['precision']} batch {spec['batch_size']}"
    settings: dict[str, Any] = {"group": group, **(own.kwargs if own else {}), "timer": recording.clock}
    request.node.add_marker(pytest.mark.benchmark(**settings), append=False)
    benchmark: Any = request.getfixturevalue("benchmark")
    if benchmark.disabled:
        benchmark.pedantic(recording.rewind)
        return
    benchmark.extra_info.update(_extra(result, contender))
    benchmark.pedantic(recording.play, setup=recording.rewind, rounds=len(contender.blocks))


def _extra(result: Result, contender: Contender) -> dict[str, Any]:
    against = {} if contender.name == result.baseline else _against(result, contender.name)
    raw = next(each for each in result.raw["contenders"] if each["name"] == contender.name)
    return {
        "samestep": result.raw["id"],
        "contender": contender.name,
        "agreement": result.agreement,
        "memory": dict(contender.memory),
        "compile_seconds": contender.compile_seconds,
        "images_per_second": contender.images_per_second,
        "steps_per_block": raw["step_seconds"]["steps_per_block"],
        "voided": result.raw["voided"],
        **against,
    }


def _against(result: Result, name: str) -> dict[str, Any]:
    comparison = next(each for each in result.raw["comparisons"] if each["contender"] == name)
    return {key: comparison[key] for key in ("baseline", "ratio", "verdict")}
