"""How much of a core does samestep's parent process use while a block is timed?

Runs a comparison of two rounds, this process being the parent (its children are processes of their own), and sums the
CPU time of all its threads over the timed blocks. Prints the share of one core; exits 1 where it is 5 % or more.

    python benchmarks/parent_cost.py torch jax
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from compare.base.interruptions import HeldSignals
from compare.execution import phases, rounds
from compare.settings import plan

LIMIT = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", default=["torch", "jax"])
    parser.add_argument("--workload", default="digits-cnn")
    parser.add_argument("--device", default="auto")
    wanted = parser.parse_args()

    block = rounds._block
    shares: list[tuple[float, float]] = []
    phase: dict[int, tuple[float, float]] = {}

    def clocks() -> tuple[float, float]:
        # The process clock counts nanoseconds; psutil's cpu_times would count in ticks of 10 ms, half a block.
        return time.process_time(), time.perf_counter()

    def watched(*inputs: Any) -> Any:
        before = clocks()
        found = block(*inputs)
        after = clocks()
        shares.append((after[0] - before[0], after[1] - before[1]))
        return found

    def progress(name: str, done: int, _total: int) -> None:
        if name == "timed rounds":
            phase[done] = clocks()

    with tempfile.TemporaryDirectory() as out, mock.patch.object(rounds, "_block", watched):
        chosen = plan.make(
            wanted.contenders,
            out=Path(out),
            workload=wanted.workload,
            device=wanted.device,
            rounds=2,
            epochs=1,
            agreement=False,
        )
        outcomes = phases.run_comparison(chosen, progress, HeldSignals())
    for outcome in outcomes.runs:
        if outcome.status != "ok":
            print(f"{outcome.contender.name}: {outcome.status}, {outcome.reason}")
            return 3

    used, lasted = (sum(values) for values in zip(*shares, strict=True))
    start, end = phase[0], phase[chosen.rounds]
    print(
        f"{' '.join(wanted.contenders)}, {wanted.workload}, {chosen.device}: {len(shares)} blocks\n"
        f"while a block is timed: {used:.4f} s of CPU in {lasted:.3f} s, {100 * used / lasted:.2f} % of one core\n"
        f"timed rounds as a whole, starting children included: {100 * (end[0] - start[0]) / (end[1] - start[1]):.2f} %"
    )
    return 0 if used / lasted < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
