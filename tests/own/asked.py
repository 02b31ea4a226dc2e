"""samestep on a pair of models, as a user runs it: its exit code, text and result file."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakebackend.plans import ROOT
from tests.own import inside

PAIRS = "examples/pairs"
QUICK = ("--device", "cpu", "--epochs", "1", "--seeds", "2", "--batch-size", "8", "--precision", "float64")


@dataclass(frozen=True)
class Answer:
    """The answer to a command.

    Attributes:
        code: the exit code.
        text: standard output, runs of white space made one blank.
        error: standard error, as it is.
        result: the result object; empty where none was written.
        first_line: that of standard output, as it is.
    """

    code: int
    text: str
    error: str
    result: Mapping[str, Any]
    first_line: str = ""

    @property
    def first_mismatch(self) -> str:
        """The tensor that the certificate names first, empty if all agree."""
        return self.result["agreement"]["first_mismatch"] or ""


def agree(
    jax: str,
    torch: str,
    out: Path,
    *options: str,
    image: str = "16x16x3",
    classes: int = 10,
    case: int = 0,
) -> Answer:
    """Run `samestep agree` on a pair, inside this process. A reference without a folder is one of `examples/pairs`.

    Training runs are left out, and all cases but one: 0 is the asked one, 1 the other.
    """
    done = inside.run("agree", *_list_arguments(jax, torch, image, classes, out), *options, case=case)
    return _answer(done, out)


def names(jax: str, torch: str, *options: str, image: str = "16x16x3", classes: int = 10) -> dict[str, str]:
    """Return the output of `samestep map`: torch's name of each variable, and Flax's."""
    done = inside.run("map", *_pair(jax, torch), "--input", image, "--classes", str(classes), *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `samestep` in the repository's root, in a terminal too wide to break a line."""
    return subprocess.run(
        [sys.executable, "-m", "compare", *arguments],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )


def _list_arguments(jax: str, torch: str, image: str, classes: int, out: Path) -> list[str]:
    contenders = ["torch:stock", "jax"]
    return [*contenders, *_pair(jax, torch), "--input", image, "--classes", str(classes), *QUICK, "--out", str(out)]


def _answer(done: subprocess.CompletedProcess[str], out: Path) -> Answer:
    path = out / "result.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    text, first_line = " ".join(done.stdout.split()), done.stdout.partition("\n")[0]
    return Answer(done.returncode, text, done.stderr, result, first_line)


def model_arguments(values: Mapping[str, Any]) -> Sequence[str]:
    """Return the options that hand `values` to the factories, by `key`, `jax.key` or `torch.key`."""
    given = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
    return [part for each in given for part in ("--model-args", each)]


def _pair(jax: str, torch: str) -> list[str]:
    return ["--jax", _reference(jax), "--torch", _reference(torch)]


def _reference(text: str) -> str:
    place = text.partition(":")[0]
    return f"{PAIRS}/{text}" if place.endswith(".py") and "/" not in place else text
