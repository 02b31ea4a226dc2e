"""Count what `samestep diff --against REV` says on a shared runner: false alarms, and slowdowns of 5 % that it finds.

    python -m benchmarks.shared_runner --runs 20 --out shared-runner.json

Another process takes half a core at times. The first runs compare a model with itself, and any alarm is false. The
others compare it with a version that does 5 % more work. The file gets each run's exit code, ratio and verdict. The
same command goes on after an interruption.
"""

import argparse
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

THRESHOLD = 0.03
SLOWDOWN = 0.05
BATCH_SIZE = 32

MODEL = """
import torch
from torch import nn

EXTRA = {extra}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        y = torch.relu(self.first(x))
        y = torch.relu(self.second(nn.functional.max_pool2d(y, 2)))
        with torch.no_grad():
            for _ in range(EXTRA):
                torch.sin(x[0])
        return self.head(y.mean((2, 3)))


def model():
    return Net()
"""


def take_half_a_core(seed):
    """Keep half a core busy for 3 to 12 s, and rest for 5 to 30 s, for ever."""
    chance = random.Random(seed)
    while True:
        end = time.monotonic() + chance.uniform(3, 12)
        while time.monotonic() < end:
            busy = time.monotonic() + 0.005
            while time.monotonic() < busy:
                pass
            time.sleep(0.005)
        time.sleep(chance.uniform(5, 30))


def calibrate():
    """Return how often the extra work must be repeated to make a training step 5 % longer."""
    import torch

    def measure(extra):
        space = {}
        exec(MODEL.format(extra=extra), space)
        model = space["model"]()
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        images, labels = torch.randn(BATCH_SIZE, 3, 32, 32), torch.randint(10, (BATCH_SIZE,))
        times = []
        for _ in range(100):
            start = time.perf_counter()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    # On two cores a process can be half as fast for a while, so the fastest of several counts.
    plain, more = map(min, zip(*((measure(0), measure(100)) for _ in range(8)), strict=True))
    return max(1, round(SLOWDOWN * plain / ((more - plain) / 100)))


def run_git(repository, *arguments):
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")
    subprocess.run(["git", "-C", repository, *identity, *arguments], check=True, capture_output=True)


def compare_revisions(repository, out, store):
    """Run the gate once, and return what it said."""
    command = [sys.executable, "-P", "-m", "compare", "diff", "--against", "HEAD", "--torch", "net.py:model"]
    command += ["--input", "32x32x3", "--classes", "10", "--batch-size", str(BATCH_SIZE), "--tuning", "stock"]
    command += ["--device", "cpu", "--fail-above", f"{THRESHOLD:.0%}", "--store", store, "--out", out]
    start = time.monotonic()
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    said = {"exit_code": done.returncode, "seconds": round(time.monotonic() - start, 1)}
    path = Path(out) / "result.json"
    if path.is_file():
        result = json.loads(path.read_text())
        (comparison,) = result["comparisons"]
        said |= {"verdict": comparison["verdict"], "ratio": comparison["ratio"], "rounds": comparison["rounds"]}
        said |= {"void": len(result["voided"])}
    else:
        said |= {"error": done.stderr[-500:]}
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs without a change, and as many with one")
    parser.add_argument("--out", type=Path, default=Path("shared-runner.json"))
    parser.add_argument("--quiet", action="store_true", help="run without the other process")
    arguments = parser.parse_args()
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    extra = found.get("extra") or calibrate()
    print(f"{extra} repetitions of the extra work are {SLOWDOWN:.0%} of a step", flush=True)
    other = multiprocessing.Process(target=take_half_a_core, args=(0,), daemon=True)
    if not arguments.quiet:
        other.start()
    found = {"extra": extra, "unchanged": [], "slower": []} | found
    started, left = time.monotonic(), 2 * arguments.runs - len(found["unchanged"]) - len(found["slower"])
    finished = 0
    with tempfile.TemporaryDirectory() as folder:
        repository, store = Path(folder) / "repository", str(Path(folder) / "store")
        repository.mkdir()
        run_git(repository, "init", "-q")
        (repository / "net.py").write_text(MODEL.format(extra=0))
        run_git(repository, "add", "net.py")
        run_git(repository, "commit", "-qm", "A model")
        for name, work in (("unchanged", 0), ("slower", extra)):
            (repository / "net.py").write_text(MODEL.format(extra=work))
            for number in range(len(found[name]), arguments.runs):
                said = compare_revisions(repository, str(Path(folder) / f"{name}-{number}"), store)
                found[name].append(said)
                finished += 1
                minutes = (time.monotonic() - started) / finished * (left - finished) / 60
                print(name, number + 1, json.dumps(said), f"about {minutes:.0f} minutes left", flush=True)
                arguments.out.write_text(json.dumps(found, indent=1))
    alarms = {name: sum(each["exit_code"] == 1 for each in found[name]) for name in ("unchanged", "slower")}
    print(f"false alarms: {alarms['unchanged']} of {arguments.runs}; found: {alarms['slower']} of {arguments.runs}")


if __name__ == "__main__":
    main()
