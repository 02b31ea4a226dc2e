"""Measure how long an answer takes, and whether the fast way answers as the slow way does.

python -m benchmarks.answer_times table [--device cpu|cuda] [--repeat N]
python -m benchmarks.answer_times agree [--device cpu|cuda] [--rounds N] [--out FILE] [WORKLOAD ...]

`table` runs each comparison twice with a store of its own: first with an empty store, then again. It prints medians.
`agree` runs each workload with all that is kept and with early stopping. Then it runs it with a fixed number of rounds,
cold compilation and a new certificate. The ratios agree if they differ by no more than the uncertainty of both. The
text also says whether each lies in the other's interval. That is stricter, because three rounds often miss the narrow
interval of ten. The file gets both ratios, and a workload that is in it is not run again.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

RUNS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "cpu": {"default": ()},
    "cuda": {
        "default": (),
        "cifar-cnn, tuned, bfloat16": (
            *("torch:tuned", "jax:tuned", "--workload", "cifar-cnn", "--precision", "bfloat16"),
        ),
        "resnet50, tuned, bfloat16": (
            *("torch:tuned", "jax:tuned", "--workload", "resnet50", "--precision", "bfloat16"),
        ),
    },
}
WORKLOADS: Mapping[str, Sequence[str]] = {
    "cpu": ("digits-cnn", "mnist-cnn", "cifar-cnn", "cifar-resnet18", "mobilenet-v2"),
    "cuda": ("digits-cnn", "cifar-cnn", "cifar-resnet18", "mobilenet-v2", "resnet50"),
}
SLOW_WAY = ("--cold-compile", "--certify-again")


@dataclass(frozen=True)
class Answer:
    """One run: seconds on the clock, CPU seconds of all its processes, exit code, and result."""

    seconds: float
    cpu_seconds: float
    code: int
    result: Mapping[str, Any]


def ask(arguments: Sequence[str], store: Path, device: str) -> Answer:
    """Run a comparison in a new process, with this store, and return its answer."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        command = [sys.executable, "-m", "compare", "compare", *arguments, "--device", device]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        code = subprocess.call([*command, "--store", str(store), "--out", str(out)], stdout=subprocess.DEVNULL)
        seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        path = out / "result.json"
        result = json.loads(path.read_text()) if path.exists() else {}
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Answer(seconds, cpu_seconds, code, result)


def describe(answer: Answer) -> str:
    """Return what the answer says in a few words."""
    comparisons = answer.result.get("comparisons") or [{}]
    rounds = answer.result.get("spec", {}).get("rounds", 0)
    void = len(answer.result.get("voided", ()))
    return f"exit {answer.code}, {comparisons[0].get('verdict', 'no verdict')}, {rounds} rounds, {void} void"


def print_table(device: str, repeat: int) -> None:
    """Print the seconds of every run, first and again."""
    print("| run | first (s) | again (s) | first, CPU (s) | again, CPU (s) | says |\n|---|---|---|---|---|---|")
    for name, arguments in RUNS[device].items():
        pairs = list[tuple[Answer, Answer]]()
        for _ in range(repeat):
            with tempfile.TemporaryDirectory() as folder:
                store = Path(folder, "store")
                pairs.append((ask(arguments, store, device), ask(arguments, store, device)))
        cells = [median(pair[which].seconds for pair in pairs) for which in (0, 1)]
        cells += [median(pair[which].cpu_seconds for pair in pairs) for which in (0, 1)]
        print(f"| {name} | {' | '.join(f'{cell:.0f}' for cell in cells)} | {describe(pairs[-1][1])} |", flush=True)


def agree(quick: Mapping[str, Any], slow: Mapping[str, Any]) -> bool:
    """Tell whether each of two results has its ratio in the interval of the other."""
    first, second = (result["comparisons"][0]["ratio"] for result in (quick, slow))
    return bool(
        first
        and second
        and second["low"] <= first["estimate"] <= second["high"]
        and first["low"] <= second["estimate"] <= first["high"]
    )


def differs_by_chance(quick: Mapping[str, Any], slow: Mapping[str, Any]) -> bool:
    """Tell whether the two ratios differ by no more than the uncertainty of both, added in quadrature."""
    ratios = [result["comparisons"][0]["ratio"] for result in (quick, slow)]
    if None in ratios:
        return False
    halves = [math.log(ratio["high"] / ratio["low"]) / 2 for ratio in ratios]
    return abs(math.log(ratios[0]["estimate"] / ratios[1]["estimate"])) <= math.hypot(*halves)


def print_agreement(
    device: str, workloads: Sequence[str], rounds: int, out: Path | None, more: Sequence[str] = ()
) -> bool:
    """Print the ratios of both ways for every workload, and return whether all agree."""
    held = list[bool]()
    done: dict[str, Any] = json.loads(out.read_text()) if out is not None and out.exists() else {}
    slow_way = ("--rounds", str(rounds), *SLOW_WAY)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        for workload in workloads:
            if workload in done:
                print(done[workload]["text"], flush=True)
                held.append(done[workload]["agree"])
                continue
            ask(("--workload", workload, *more), store, device)  # fills the store
            both = [ask(("--workload", workload, *way, *more), store, device) for way in ((), slow_way)]
            if any(not answer.result for answer in both):
                print(f"{workload}: no result, {', '.join(map(describe, both))}", flush=True)
                held.append(False)
                continue
            ratios = [answer.result["comparisons"][0]["ratio"] for answer in both]
            if None in ratios:
                print(f"{workload}: no ratio to compare, {' and '.join(map(describe, both))}: repeat it", flush=True)
                held.append(False)
                continue
            texts = [f"{ratio['estimate']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f})" for ratio in ratios]
            results = [answer.result for answer in both]
            held.append(differs_by_chance(*results))
            counts = " and ".join(
                f"{answer.result['spec']['rounds']} rounds in {answer.seconds:.0f} s" for answer in both
            )
            inside = "each in the other's interval" if agree(*results) else "not each in the other's interval"
            text = f"{workload}: {' and '.join(texts)}, {counts}, {inside}: {'agree' if held[-1] else 'DIFFER'}"
            print(text, flush=True)
            done[workload] = {"text": text, "agree": held[-1], "ratios": ratios}
            if out is not None:
                out.write_text(json.dumps(done, indent=1))
    return all(held)


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says, and return 1 if the ways do not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("table", "agree"))
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10, help="rounds of the slow way")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--void-limit", help="of both ways, where a machine does not become quiet")
    asked = parser.parse_intermixed_args(words)
    if asked.action == "table":
        print_table(asked.device, asked.repeat)
        return 0
    workloads = asked.workloads or WORKLOADS[asked.device]
    more = () if asked.void_limit is None else ("--void-limit", asked.void_limit)
    return 0 if print_agreement(asked.device, workloads, asked.rounds, asked.out, more) else 1


if __name__ == "__main__":
    sys.exit(main())
