"""What tuning buys: step times of several tunings of one backend, blocks alternating in one process.

Quicker than `samestep compare torch:stock torch:compiled ...` and weaker: one process says nothing about how launches
differ. Prints each tuning's step time and its ratio to the first's, with the interval over rounds.

    python -m benchmarks.tunings --backend torch stock compiled tuned
"""

import argparse
from statistics import median

from benchmarks import in_process
from compare.base import statistics, workloads
from compare.execution.rounds import BLOCK_SECONDS
from compare.settings.block_order import palindromic

PALINDROMES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tunings", nargs="+")
    parser.add_argument("--backend", choices=("jax", "torch"), required=True)
    parser.add_argument("--workload", choices=("digits-cnn", "cifar-cnn"), default="digits-cnn")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--rounds", type=int, default=20)
    wanted = parser.parse_args()

    workload = workloads.get(wanted.workload)
    size = wanted.batch_size or workload.batch_size
    workers = [
        in_process.opened(
            wanted.backend, tuning, workload.name, precision="float32", device="cpu", batch_size=wanted.batch_size
        )
        for tuning in wanted.tunings
    ]
    steps = [worker.warm_up(BLOCK_SECONDS["cpu"], None)["steps_per_block"] for worker in workers]

    medians: list[list[float]] = [[] for _ in workers]
    for _ in range(wanted.rounds):
        blocks: list[list[float]] = [[] for _ in workers]
        for index in palindromic(len(workers), PALINDROMES):
            blocks[index].append(workers[index].block(steps[index]) / steps[index])
        for times, found in zip(medians, blocks, strict=True):
            times.append(median(found))

    print(f"{wanted.backend} {workload.name} float32 cpu batch {size}, {wanted.rounds} rounds in one process")
    for tuning, times in zip(wanted.tunings, medians, strict=True):
        ratio = statistics.paired_ratio(medians[0], times)
        print(
            f"{tuning:32} {1e3 * median(times):8.4f} ms per step, {ratio.estimate:.3f} of {wanted.tunings[0]}'s "
            f"({ratio.low:.3f} to {ratio.high:.3f})"
        )


if __name__ == "__main__":
    main()
