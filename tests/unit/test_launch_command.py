"""`samestep launch` refuses what the command that it launches would, and nothing that the nodes may carry out."""

import re
import shlex
from collections.abc import Generator
from pathlib import Path

import pytest

from compare.machine import environment
from tests.unit import programs
from tests.unit.programs import Program

SPREAD = ["torch:stock+ddp", "jax:stock+sharded"]
TWO = [*SPREAD, "--devices", "2"]
DRY_RUN = ("launch", "--slurm", "--dry-run")


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    """The program on a machine without a GPU, as machines that take jobs for Slurm may be."""
    monkeypatch.setattr(environment.nvml, "list_visible", list)
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


@pytest.mark.parametrize("name", ["compare", "agree"])
@pytest.mark.parametrize(
    "refused",
    [
        ["--seed", "-1"],
        ["--deadline", "0"],
        ["--epochs", "0"],
        ["--batch-size", "1"],
        ["--batch-size", "5000"],
        ["--workload", "resnet50", "--batch-size", "200000000"],
        ["--precision", "half"],
        ["--precision", "tf32", "--device", "cpu"],
        ["--device", "tpu"],
        ["--workload", "nope"],
        ["--workload", "mnist-cnn"],
        ["--data", "somewhere"],
        ["--data", ""],
        ["--images", "3"],
        ["--workload", "resnet50", "--data", "somewhere", "--images", "0"],
        ["--jax", "a.py:model", "--torch", "b.py:model"],
        ["--tuning", "stock", "--knobs", "compile"],
    ],
    ids=" ".join,
)
def test_what_the_command_refuses_anywhere_is_refused_in_its_words(program: Program, name: str, refused: list[str]):
    _refused_alike(program, name, *TWO, *refused)


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("compare", ["--rounds", "1"]),
        ("compare", ["--rounds", "two"]),
        ("compare", ["--margin", "5"]),
        ("compare", ["--design", "foo"]),
        ("compare", ["--quick", "--paper"]),
        ("compare", ["--rounds", "5", "--quick"]),
        ("agree", ["--seeds", "1"]),
        ("agree", ["--rounds", "5"]),
    ],
)
def test_what_one_command_alone_refuses_is_too(program: Program, name: str, refused: list[str]):
    _refused_alike(program, name, *TWO, *refused)


def _refused_alike(program: Program, *arguments: str) -> None:
    code, out, error = program.run(*arguments)
    assert (code, out) == (2, "")
    assert program.run(*DRY_RUN, "--", *arguments) == (2, "", error)
    assert not program.files()


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        (
            [],
            ["compare", *SPREAD],
            "--devices 1 on 2 machines is not allowed; allowed: equally many on each, .* such as --devices 2",
        ),
        (
            ["--gpus-per-node", "4"],
            ["compare", *SPREAD, "--devices", "3"],
            "--devices 3 on 2 machines .* such as --devices 2",
        ),
        (
            ["--gpus-per-node", "1"],
            ["compare", *SPREAD, "--devices", "16"],
            "--devices 16, 8 on each of 2 machines is not allowed: 1 GPUs are visible with --gpus-per-node 1",
        ),
        (
            ["--nodes", "3"],
            ["agree", *SPREAD, "--device", "cpu", "--devices", "195", "--batch-size", "195"],
            "--devices 195, 65 on each of 3 machines is not allowed: 64 parts of this CPU can be used",
        ),
        (["--gpus-per-node", "4"], ["agree", *TWO, "--device", "cpu"], "--gpus-per-node 4 with --device cpu is not"),
        ([], ["compare", "--devices", "2"], "--devices 2: no contender says how it uses several; allowed: --parallel"),
        ([], ["compare", "tensorflow", "jax", "--devices", "2"], "unknown contender 'tensorflow'; allowed: BACKEND"),
        (
            [],
            ["compare", "torch:ddp", "jax:fast", "--devices", "2"],
            "unknown tuning or knob 'fast' in jax:fast; allowed",
        ),
        *(
            ([], ["compare", *TWO, *options], said)
            for options, said in (
                (["--batch-size", "63"], "--batch-size 63 with --devices 2 is not allowed; allowed: a multiple of 2"),
                (["--batch-norm", "local"], "--batch-norm local: jax:stock.sharded is a program over the whole batch"),
                (["--batch-norm", "other"], "--batch-norm 'other' is not allowed; allowed: sync, local"),
                (["--accumulate", "2"], "--accumulate 2 with torch:stock.ddp is not allowed; allowed: 1"),
                (
                    ["--jax", "a.py:model", "--torch", "b.py:model", "--input", "8x8x1", "--classes", "10"],
                    "--devices 2 on 2 machines: models of your own train on one machine; allowed: no launcher",
                ),
            )
        ),
    ],
)
def test_a_command_that_must_fail_on_its_nodes_is_refused(
    program: Program, options: list[str], command: list[str], said: str
):
    code, out, error = program.run(*DRY_RUN, *options, "--", *command)
    assert (code, out) == (2, "")
    assert re.search(said, error), error
    assert not program.files()


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (["--gpus-per-node", "8", "--nodes", "4"], ["compare", "torch:tuned", "jax:tuned+sharded", "--devices", "32"]),
        ([], ["agree", "--parallel", "ddp,pmap", "--devices", "16"]),  # how many GPUs there are is not known
        ([], ["compare", *SPREAD, "--devices", "128", "--device", "cpu", "--batch-size", "256"]),
        ([], ["compare", "torch:ddp", "jax:pmap+overlap-reduction", "--devices", "2"]),  # which a GPU has
        ([], ["compare", "torch:tuned+ddp+graph-capture=off", "jax", "--devices", "2"]),  # which a CPU has
        ([], ["compare", *TWO, "--device", "cuda", "--precision", "tf32"]),
        ([], ["agree", *TWO, "--precision", "tf32"]),
        ([], ["compare", *TWO, "--workload", "mnist-cnn", "--data", "only-there"]),
        ([], ["compare", *TWO, "--workload", "resnet50", "--data", "only-there", "--images", "1000"]),
    ],
)
def test_a_command_that_its_nodes_may_carry_out_is_taken(program: Program, options: list[str], command: list[str]):
    code, script, _ = program.run(*DRY_RUN, *options, "--", *command)
    assert code == 0
    name, *arguments = command
    assert re.search(rf"-m compare {name} --out \S+ {re.escape(shlex.join(arguments))}\n", script)


def test_nothing_is_synthesised_for_a_plan(program: Program, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("compare.data.datasets.synthesise", lambda *_, **__: pytest.fail("images were made"))
    assert program.run(*DRY_RUN, "--", "compare", *TWO, "--workload", "resnet50")[0] == 0
