"""The batch script of `samestep launch`, where it lies, and what it asks of Slurm."""

import re
import shlex
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from compare.base.interface import Refused
from compare.cluster import slurm
from compare.machine import environment
from tests.unit import programs
from tests.unit.programs import Program

TWO = ["torch:stock+ddp", "jax:stock+sharded", "--devices", "2"]
BY_SLURM = ("launch", "--slurm")
DRY_RUN = (*BY_SLURM, "--dry-run")


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    """The program on a machine without a GPU, as machines that take jobs for Slurm may be."""
    monkeypatch.setattr(environment.nvml, "list_visible", list)
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


def sbatch(program: Program, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Let the program find only an sbatch with these lines of shell."""
    file = program.folder.parent / "bin/sbatch"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(("#!/bin/sh", *lines, "")))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}:/usr/bin:/bin")


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


def command(script: str) -> list[str]:
    """Return samestep's arguments in a batch script."""
    return shlex.split(script.splitlines()[-1])[4:]


def test_the_batch_script_starts_one_samestep_a_node_with_a_secret_of_its_own(program: Program):
    """It is run as Slurm would run it, with an srun that starts its command on one node after the other."""
    folder = program.folder
    options = ("--nodes", "2", "--gpus-per-node", "4", "--sbatch", "--partition=gpu", "--out", "an out")
    code, script, _ = program.run(*DRY_RUN, *options, "--", "compare", "torch:stock+ddp", "jax", "--devices", "8")
    assert code == 0
    assert not program.files()
    assert directives(script) == [
        "--job-name=samestep",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--exclusive",
        "--gpus-per-node=4",
        f"--chdir={folder}",
        f'"--output={folder}/an out/slurm-%j.log"',
        "--partition=gpu",
    ]
    srun = folder / "srun"
    srun.write_text(
        '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do echo "$1"; shift; done\n'
        'for node in 0 1; do echo "$SAMESTEP_TOKEN"; for each; do echo "<$each>"; done; done\n'
    )
    srun.chmod(0o755)
    variables = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_CPUS_PER_TASK": "16"}
    ran = subprocess.run(
        ["bash"], input=script, env=variables, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--cpus-per-task=16"} <= set(ran)
    arguments = [
        "-P",
        "-m",
        "compare",
        "compare",
        "--out",
        f"{folder}/an out",
        "torch:stock+ddp",
        "jax",
        "--devices",
        "8",
    ]
    started = [f"<{each}>" for each in (sys.executable, *arguments)]
    one, other = ran[-2 * len(started) - 2 : -len(started) - 1], ran[-len(started) - 1 :]
    assert one == other
    assert one[1:] == started
    assert len(one[0]) == 64
    assert int(one[0], 16)


def test_a_job_is_submitted_and_what_sbatch_says_is_passed_on(program: Program, monkeypatch: pytest.MonkeyPatch):
    given = (*BY_SLURM, "--out", "out", "--", "agree", "--parallel", "ddp,sharded", "--devices", "2")
    sbatch(program, monkeypatch, 'grep -q "^exec srun" "$1" && echo "Submitted batch job 17"')
    code, out, error = program.run(*given)
    assert (code, error) == (0, "")
    folder = program.folder / "out"
    assert out == f"Submitted batch job 17: {folder}/samestep.sbatch, output in {folder}/slurm-JOB.log\n"
    assert program.files() == ["out", "out/samestep.sbatch"]
    sbatch(program, monkeypatch, 'echo "sbatch: error: invalid partition specified: gpu" >&2', "exit 1")
    code, _, error = program.run(*given)
    assert code == 2
    assert "did not take" in error
    assert "invalid partition specified: gpu" in error


@pytest.mark.parametrize(
    ("of_launch", "of_command", "folder", "results"),
    [
        ([], ["--out", "inner"], "inner", "inner"),
        ([], ["--out=inner"], "inner", "inner"),
        (["--out", "outer"], [], "outer", "outer"),
        (["--out", "outer"], ["--out", "inner"], "outer", "inner"),
    ],
)
def test_script_and_log_lie_beside_the_result_unless_launch_is_told_otherwise(
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    of_launch: list[str],
    of_command: list[str],
    folder: str,
    results: str,
):
    sbatch(program, monkeypatch, "echo Submitted batch job 17")
    code, _, error = program.run(*BY_SLURM, *of_launch, "--", "compare", *TWO, *of_command)
    assert (code, error) == (0, "")
    assert program.files() == [folder, f"{folder}/samestep.sbatch"]
    script = (program.folder / folder / "samestep.sbatch").read_text()
    assert f"--output={program.folder}/{folder}/slurm-%j.log" in directives(script)
    named = of_command or ["--out", str(program.folder / results)]
    assert [each for each in command(script) if each in ("--out", *named)] == named


def test_without_out_a_folder_is_named_after_the_time(program: Program):
    code, script, _ = program.run(*DRY_RUN, "--", "compare", *TWO)
    name, option, folder, *rest = command(script)
    assert (code, name, option, rest) == (0, "compare", "--out", TWO)
    assert re.fullmatch(re.escape(str(program.folder)) + r"/samestep-out/[0-9-]+", folder)
    assert f"--output={folder}/slurm-%j.log" in directives(script)


def test_a_dry_run_says_which_folder_its_script_needs(program: Program):
    """If Slurm cannot open a job's log, it ends the job and does not say why."""
    given = (*DRY_RUN, "--out", "an out", "--", "compare", *TWO)
    _, _, error = program.run(*given)
    making = f"mkdir -p '{program.folder}/an out'"
    assert error.endswith(f" run: {making}\n")
    assert not program.files()
    subprocess.run(["sh", "-c", making], check=True)
    assert program.run(*given)[2] == ""


@pytest.mark.parametrize(
    ("folder", "why"),
    [("file", "file is no folder"), ("file/x", "file is no folder"), ("x" * 300, "File name too long")],
)
def test_a_dry_run_names_no_folder_that_cannot_be_made(program: Program, folder: str, why: str):
    (program.folder / "file").touch()
    code, out, error = program.run(*DRY_RUN, "--out", folder, "--", "compare", *TWO)
    assert (code, out) == (2, "")
    assert error.endswith(f"{why}; allowed: a folder you may write to\n")


def test_what_slurm_would_replace_in_a_folder_s_name_is_escaped(program: Program):
    code, script, _ = program.run(*DRY_RUN, "--", "compare", *TWO, "--out", "100%/%j")
    assert code == 0
    assert f"--output={program.folder}/100%%/%%j/slurm-%j.log" in directives(script)
    assert command(script)[-2:] == ["--out", "100%/%j"]


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("a\\b", "Slurm writes no log there; allowed: a folder without a backslash"),
        ("a\nb", "; allowed: without control characters, and in UTF-8"),
        ("a\udcffb", "; allowed: without control characters, and in UTF-8"),  # as Python has what is no UTF-8
    ],
)
def test_a_folder_that_no_line_of_a_batch_script_names_is_refused(program: Program, folder: str, said: str):
    code, out, error = program.run(*DRY_RUN, "--out", folder, "--", "compare", *TWO)
    assert (code, out) == (2, "")
    assert error.endswith(f"{said}\n")
    assert repr(folder)[1:-1] in error


def test_a_backslash_in_an_option_of_sbatch_is_kept(program: Program):
    _, script, _ = program.run(*DRY_RUN, "--sbatch", '--comment=a\\b "c"', "--", "compare", *TWO)
    assert '"--comment=a\\\\b \\"c\\""' in directives(script)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "compare"], "needs to know the launcher; allowed: --slurm"),
        (["--slurm", "--", "scale"], "samestep launch scale is not allowed; allowed: compare or agree"),
        (["--slurm", "--nodes", "1", "--", "compare"], "--nodes 1 is not allowed; allowed: 2 to 4096"),
        (["--slurm", "--gpus-per-node", "-1", "--", "agree"], "--gpus-per-node -1 is not allowed; allowed: 0 to 64"),
        (["--slurm", "--sbatch", "gpu", "--", "agree"], "--sbatch 'gpu' is not allowed; allowed: an option of sbatch"),
        (
            ["--slurm", "--", "agree", "torch:ddp", "jax", "--devices", "2"],
            "sbatch is not installed here, so .* was written and not submitted",
        ),
    ],
)
def test_launches_that_cannot_be_are_refused(
    program: Program, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
):
    monkeypatch.setenv("PATH", str(program.folder))
    code, _, error = program.run("launch", *arguments)
    assert code == 2
    assert re.search(said, error), error


def test_options_of_sbatch_cannot_bring_in_lines_of_their_own():
    job = slurm.Job(2, 0, ["--comment=a\nrm -r x"], Path())
    with pytest.raises(Refused, match="is not allowed; allowed: an option of sbatch"):
        slurm.check(job)
    with pytest.raises(Refused, match=r"would not read '--chdir=a\\nrm"):
        slurm.Job(2, 0, [], Path("a\nrm -r x")).script(["compare"], Path())


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--nodes=9", "--nodes of samestep launch"),
        ("--gpus-per-node=1", "--gpus-per-node of samestep launch"),
        ("--output=log", "--out of samestep launch"),
        ("--ntasks-per-node=2", "options that samestep does not write itself, of one job"),
        ("--exclusive=user", "options that samestep does not write itself, of one job"),
        ("--chdir=/", "options that samestep does not write itself, of one job"),
        ("--dry-run", "--dry-run of samestep launch"),
        ("--array=0-3", "options that samestep does not write itself, of one job"),
    ],
)
def test_options_of_sbatch_that_the_job_has_are_refused(option: str, instead: str):
    job = slurm.Job(2, 0, ["--job-name=mine", option], Path())
    with pytest.raises(Refused) as refusal:
        slurm.check(job)
    assert str(refusal.value) == f"--sbatch {option} is not allowed: the job says so itself; allowed: {instead}"
