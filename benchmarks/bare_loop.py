"""Compare samestep's timing loop with a bare loop over the same step in the same process.

Blocks of the worker's own `timed` and of a loop that calls the framework directly alternate A B B A. The output is the
ratio of reported to bare step time with its interval. The exit code is 1 if the estimate is over 2 % from 1.

    python -m benchmarks.bare_loop --backend jax --workload digits-cnn
"""

import argparse
import contextlib
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import in_process
from compare.base import statistics
from compare.base.interface import DEVICES
from compare.base.precisions import PRECISIONS
from compare.base.workloads import WORKLOADS
from compare.execution.timed_round import BLOCK_SECONDS
from compare.settings.block_order import make_palindrome
from compare.worker.worker import time_steps

LIMIT = 0.02
PALINDROMES = 3

Bare = Callable[[int], float]


def torch_loop(session: Any) -> Bare:
    import torch

    step, pool, several = session._step, session._input._pool, session._input._several
    cuda = session._device.type == "cuda"
    synchronize = torch.cuda.synchronize if cuda else lambda: None

    def single(steps: int) -> float:
        start = perf_counter()
        for index in range(steps):
            images, labels = pool[index % len(pool)]
            step(images, labels)
        synchronize()
        return perf_counter() - start

    def replayed(steps: int) -> float:
        start = perf_counter()
        for index in range(0, steps, session.steps_per_dispatch):
            several(index % len(pool))
        synchronize()
        return perf_counter() - start

    return single if several is None else replayed


def jax_loop(session: Any) -> Bare:
    import jax
    import jax.numpy as jnp
    import numpy as np

    program, several = session._step.program, session._step.several
    pool, stacked = session._input._pool, session._input._stacked
    state = jax.tree.map(jnp.copy, session._state)  # a donated state cannot be shared with the session

    def single(steps: int) -> float:
        nonlocal state
        start = perf_counter()
        for index in range(steps):
            images, labels = pool[index % len(pool)]
            state, _ = program(state, images, labels)
        jax.block_until_ready(state)
        return perf_counter() - start

    def scanned(steps: int) -> float:
        nonlocal state
        images, labels = stacked
        start = perf_counter()
        for index in range(0, steps, session.steps_per_dispatch):
            state, _ = several(state, images, labels, np.int32(index % len(images)))
        jax.block_until_ready(state)
        return perf_counter() - start

    return single if several is None else scanned


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("jax", "torch"), required=True)
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="digits-cnn")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--device", choices=[name for name in DEVICES if name != "auto"], default="cpu")
    parser.add_argument("--tuning", default="compiled")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--rounds", type=int, default=20, help="groups of blocks, each giving one pair of medians")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    worker = in_process.open_worker(
        options.backend,
        options.tuning,
        options.workload,
        precision=options.precision,
        device=options.device,
        batch_size=options.batch_size,
    )
    steps = worker.warm_up(BLOCK_SECONDS[options.device], None).steps_per_block
    session: Any = worker._open_session

    # The worker enters the precision's scope at every `run`. Here it is entered once, outside the clock.
    scope: contextlib.AbstractContextManager[None] = session._policy.scope()
    bare = torch_loop(session) if options.backend == "torch" else jax_loop(session)
    with scope:
        bare(steps)
    reported_medians: list[float] = []
    bare_medians: list[float] = []
    for _ in range(options.rounds):
        blocks: tuple[list[float], list[float]] = ([], [])
        for which in make_palindrome(2, PALINDROMES):
            if which == 0:
                blocks[0].append(time_steps(session, steps, perf_counter)[0] / steps)
            else:
                with session._policy.scope():
                    blocks[1].append(bare(steps) / steps)
        reported_medians.append(median(blocks[0]))
        bare_medians.append(median(blocks[1]))

    ratio = statistics.estimate_paired_ratio(bare_medians, reported_medians)
    passed = abs(ratio.estimate - 1) <= LIMIT
    print(
        f"{options.backend}:{options.tuning} {options.workload} {options.precision} {options.device}, "
        f"{steps} steps per block, {options.rounds} rounds of {2 * PALINDROMES} blocks each\n"
        f"reported {1e3 * median(reported_medians):.4f} ms, bare {1e3 * median(bare_medians):.4f} ms per step; "
        f"reported / bare {ratio.estimate:.4f}, 95 % interval {ratio.low:.4f} to {ratio.high:.4f}: "
        f"{'within' if passed else 'beyond'} {100 * LIMIT:g} %"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
