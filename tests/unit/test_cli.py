import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compare import __version__
from compare.base import commands, output
from compare.base.interface import Refused
from compare.base.knobs import KNOBS, Value
from compare.base.workloads import WORKLOADS
from compare.machine import environment, variables
from compare.settings import contenders, plan
from compare.settings.options import Settings
from compare.settings.tunings import (
    SYNCHRONISED,
    TUNED,
    drop_search,
    reduce_compilation,
    resolve,
)
from tests.fakebackend import plans
from tests.unit import programs
from tests.unit.programs import Program


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


@pytest.mark.parametrize("module", ["compare.cli.app", "compare.execution.execute"])
def test_an_interrupt_while_the_program_is_imported_is_no_traceback(module: str) -> None:
    interrupted = """
import os, signal, sys, time
from compare import __main__ as program

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
sys.meta_path.insert(0, Interrupting())
program.main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", interrupted, "compare", module], capture_output=True, timeout=50, check=False
    )
    assert ended.stderr == b"samestep: interrupted\n"


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", started)


REFUSALS = [
    (["fake", "other", "--rounds", "ten"], "--rounds 'ten' is not allowed; allowed: a whole number"),
    (["fake", "other", "--batch-size=6.4"], "--batch-size '6.4' is not allowed; allowed: a whole number"),
    (["fake", "other", "--epochs", ""], "--epochs '' is not allowed; allowed: a whole number"),
    (["fake", "other", "--seed", "0x1"], "--seed '0x1' is not allowed; allowed: a whole number"),
    (["fake", "other", "--margin", "x"], "--margin 'x' is not allowed; allowed: above 0 and below 1"),
    (["fake", "other", "--margin", "100%"], "--margin 1 is not allowed; allowed: above 0 and below 1"),
    (["fake", "other", "--margin", "50%", "--rounds", "0"], "--rounds 0 is not allowed"),
    (["fake", "other", "--fail-above", "3%"], "the option belongs to diff"),
    (["fake", "other", "--prune", "half%"], "--prune 'half%' is not allowed; allowed: above 0 and below 1"),
    (["fake", "other", "--deadline", "5m"], "--deadline '5m' is not allowed; allowed: seconds above 0"),
    (["fake", "nonesuch"], "unknown contender 'nonesuch'; allowed: BACKEND[:TUNING] with BACKEND torch or jax"),
    (["fake", "Torch"], "unknown contender 'Torch'"),
    (["fake", "fake#2"], "unknown contender 'fake#2'"),
    (["fake", ""], "unknown contender ''"),
    (["fake", "other:"], "contender 'other:' has an empty tuning; allowed: stock, compiled, tuned or knobs"),
    (["fake", "other:fast"], "unknown tuning or knob 'fast' in other:fast; allowed: stock, compiled, tuned"),
    (["fake", "other:tuned+warp=9"], "knobs joined by '+': `samestep knobs` lists them\n"),
    (["fake", "other:input=disk"], "other:input=disk: input=disk is not allowed; allowed: resident, stream"),
    (["fake", "other:input"], "other:input: input= is not allowed; allowed: resident, stream"),
    (["fake", "other:input=stream+input=stream"], "gives 'input' twice"),
    (["fake", "other:compile=maybe"], "compile=maybe is not allowed; allowed: on, off"),
    (["fake", "other:steps-per-dispatch=0"], "steps-per-dispatch=0 is not allowed; allowed: a whole number from 1"),
    (["fake", "other:steps-per-dispatch=1e9"], "allowed: a whole number from 1 to 1000"),
    (["fake", "other:compile=on+compile=off"], "other:compile=on+compile=off gives 'compile' twice"),
    (["fake", "other:graph-capture"], "graph-capture needs --device cuda"),
    (["torch:kernel-search", "fake"], "kernel-search needs --device cuda"),
    (["torch:compile+concurrent-kernels", "fake"], "concurrent-kernels needs --device cuda"),
    (["jax:channels-last=off", "fake"], "jax has no switch 'channels-last' (always on: images and kernels are NHWC)"),
    (["jax:compiled-autograd", "fake"], "jax has no switch 'compiled-autograd' (none: jax.grad is in the"),
    (["torch:compiled+pointwise-matmul", "fake"], "the knob pointwise-matmul was removed; use tuned"),
    (["torch:max-autotune", "fake"], "torch:max-autotune: max-autotune needs compile"),
    (["jax:max-autotune", "fake"], "jax has no switch 'max-autotune' (none: kernel-search is all that XLA searches"),
    (["jax:compile=off+fused-optimizer", "fake"], "fused-optimizer needs compile in jax"),
    (["jax:compile=off+pieces", "fake"], "pieces needs compile"),
    (["jax:compiled+pieces", "fake"], "pieces excludes donation in jax; allowed: one of them"),
    (["jax:compile+pieces+steps-per-dispatch=2", "fake"], "pieces excludes steps-per-dispatch in jax"),
    (["torch:pieces", "fake"], "torch has no switch 'pieces'"),
    (["jax:compile=off+rematerialisation", "fake"], "rematerialisation needs compile in jax"),
    (["jax:compile+pieces+rematerialisation", "fake"], "pieces excludes rematerialisation"),
    (["fake", "other:rematerialisation=2"], "rematerialisation=2 is not allowed; allowed: on, off"),
    (
        ["fake", "other:rematerialisation"],
        "other:rematerialisation, workload digits-cnn: rematerialisation of this workload's model: it is one block",
    ),
    (["fake", "other", "--tuning", "fast"], "unknown tuning or knob 'fast' in --tuning fast; allowed: stock, "),
    (["fake", "other", "--tuning", "stok"], "'stok' in --tuning stok; did you mean 'stock'? allowed: stock, compiled"),
    (
        ["fake", "other", "--knobs", "compile,warp"],
        "--knobs compile,warp; allowed: stock, compiled, tuned, best, ahead-of-time, or knobs joined by ','",
    ),
    (
        ["fake", "other:tuned+"],
        "other:tuned+ has an empty part; allowed: stock, compiled, tuned, best, ahead-of-time, or knobs",
    ),
    (["--allow", "running-variance"], "--allow: a pair of your own needs --jax, --torch, --input, --classes as well"),
    (["--jax", "a.py:b", "--input", "9x9x3"], "--jax --input: a pair of your own needs --classes as well"),
    (["fake", "other", "--knobs", ""], "--tuning and --knobs must not be empty"),
    (["fake", "other", "--knobs", "compile", "--tuning", "tuned"], "--tuning and --knobs exclude each other"),
    (["fake"], "a comparison needs at least two contenders, got 1: fake"),
    (["fakes"], "unknown contender 'fakes'; did you mean 'fake'? allowed: BACKEND[:TUNING]"),
    (["Fake:stock", "other"], "unknown contender 'Fake:stock'; did you mean 'fake'? allowed: BACKEND[:TUNING]"),
    (["fake", "other", "--knobs", "fused"], "did you mean 'fused-optimizer' or 'fused-batch-norm'"),
    (["fake", "other", "--precision", "fp16"], "--precision 'fp16' is not allowed; did you mean 'float16'? allowed: "),
    (["fake", "other", "--workload", "resnet"], "unknown workload 'resnet'; did you mean 'resnet50'? allowed: "),
    (["fake", "other", "--precision", "fp8"], "--precision 'fp8' is not allowed; allowed: float64, float32, tf32"),
    (["fake", "other", "--precision", "tf32", "--device", "cpu"], "precision tf32 needs --device cuda"),
    (["fake", "other", "--precision", "tf32"], "precision tf32 needs --device cuda"),
    (["fake", "other", "--device", "tpu"], "--device 'tpu' is not allowed; allowed: auto, cpu, cuda"),
    (["fake", "other", "--device", "cuda"], "--device cuda: this machine has no NVIDIA GPU"),
    (["fake", "other", "--batch-size", "1438"], "batch size 1438 is larger than the training set"),
    (["fake", "other", "--batch-size", "1"], "--batch-size 1 is not allowed; allowed: a whole number from 2"),
    (["fake", "other", "--batch-size", "0"], "--batch-size 0 is not allowed"),
    (["fake", "other", "--batch-size", "-64"], "--batch-size -64 is not allowed"),
    (["fake", "other", "--workload", "cifar-cnn", "--batch-size", "2000000000"], "synthetic images"),
    (["fake", "other", "--accumulate", "0"], "--accumulate 0 is not allowed; allowed: a whole number from 1"),
    (["fake", "other", "--accumulate", "3"], "--accumulate 3 with batch 64 is not allowed; allowed: equal parts of 2"),
    (["fake", "other", "--accumulate", "64"], "--accumulate 64 with batch 64 is not allowed"),
    (["fake", "other", "--rounds", "0"], "--rounds 0 is not allowed"),
    (["fake", "other", "--rounds", "1"], "--rounds 1 is not allowed"),
    (["fake", "other", "--rounds", "-3"], "--rounds -3 is not allowed"),
    (["fake", "other", "--epochs", "0"], "--epochs 0 is not allowed"),
    (["fake", "other", "--epochs", "-1"], "--epochs -1 is not allowed"),
    (["fake", "other", "--seed", "-1"], "--seed -1 is not allowed"),
    (["fake", "other", "--seed", str(2**31)], f"--seed {2**31} is not allowed"),
    (["fake", "other", "--unequal", "luck"], "--unequal luck is not allowed; allowed: threads"),
    (["fake", "other", "--margin", "0"], "--margin 0 is not allowed"),
    (["fake", "other", "--margin", "nan"], "--margin nan is not allowed"),
    (["fake", "other", "--deadline", "0"], "--deadline 0 is not allowed"),
    (
        ["fake", "other", "--deadline", "inf"],
        "--deadline inf is not allowed; allowed: seconds above 0, up to 2147483647",
    ),
    (
        ["fake", "other", "--quick", "--paper"],
        "--quick and --paper exclude each other; allowed: one of --rounds, --quick, --paper",
    ),
    (["fake", "other", "--rounds", "2", "--quick"], "--rounds and --quick exclude each other"),
    (["fake", "other", "--rounds", "10", "--paper"], "--rounds and --paper exclude each other"),
    (
        ["fake", "other", "--search-anew"],
        "--search-anew: on cpu no contender's program keeps the kernels that a search chose",
    ),
    (["fake", "other", "--workload", "mnist-cnn"], "workload mnist-cnn needs --data DIR"),
    (["fake", "other", "--workload", "mnist-cnn", "--data", "nowhere"], "--data nowhere: no such folder"),
    (["fake", "other", "--workload", "cifar-cnn", "--data", "nowhere"], "--data nowhere: no such folder"),
    (["fake", "other", "--workload", "cifar-cnn", "--data", ""], "--data '' is not allowed; allowed: a folder's path"),
    (
        ["fake", "other", "--data", "nowhere"],
        "workload digits-cnn takes no folder, its digits are embedded; leave --data out",
    ),
]


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(("arguments", "said"), REFUSALS, ids=[" ".join(arguments) for arguments, _ in REFUSALS])
def test_what_cannot_be_done_is_refused_before_any_process(
    program: Program, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: False)
    monkeypatch.setattr(environment, "is_installed", lambda package: True)
    _refused(program, arguments, said)


@pytest.mark.parametrize(
    ("arguments", "rounds", "energy"),
    [
        ([], None, True),
        (["--quick"], 5, False),
        (["--rounds", "3", "--skip-energy"], 3, False),
        (["--paper"], 20, True),
    ],
)
def test_energy_is_measured_unless_time_is_to_be_saved(
    program: Program, monkeypatch: pytest.MonkeyPatch, arguments: list[str], rounds: int | None, energy: bool
) -> None:
    asked = list[Settings]()

    def note_settings(settings: Settings, **_: Any) -> None:
        asked.append(settings)
        raise SystemExit(0)

    monkeypatch.setattr(plan, "make", note_settings)
    program.run("compare", "fake", "other", *arguments)
    assert [(settings.rounds, settings.energy) for settings in asked] == [(rounds, energy)]


@pytest.mark.parametrize(
    ("command", "where"), [("compare", "compare.settings.plan"), ("scale", "compare.studies.scaling")]
)
def test_compile_times_are_cold_and_kernels_searched_for_once_unless_other_is_asked(
    program: Program, monkeypatch: pytest.MonkeyPatch, command: str, where: str
) -> None:
    asked = list[tuple[bool, bool]]()

    def note_settings(settings: Settings, *_: Any, **__: Any) -> None:
        asked.append((settings.cold_compile, settings.search_anew))
        raise SystemExit(0)

    monkeypatch.setattr(f"{where}.make", note_settings)
    for more in ([], ["--skip-cold-compile"], ["--cold-compile"], ["--search-anew"], ["--paper"], ["--quick"]):
        program.run(command, "fake", "other", *more)
    assert asked == [(False, False), (False, False), (True, False), (False, True), (False, False), (False, False)]


def _refused(program: Program, arguments: list[str], said: str, command: str = "compare") -> None:
    before = program.files()
    code, out, error = program.run(command, *arguments)
    assert (code, out) == (2, "")
    assert error.startswith("samestep: ")
    assert error.count("\n") == 1
    assert said in error
    assert program.files() == before


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_backend_that_is_not_installed_is_refused_with_the_command_that_installs_it(
    program: Program, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(environment, "is_installed", lambda package: package not in ("torch", "flax", "optax"))
    missing = {"torch": "torch", "jax": "flax, optax"}[backend]
    said = f"contender '{backend}:stock' needs the package {missing}, which is not installed; install it with: "
    _refused(program, ["fake", f"{backend}:stock"], f"{said}pip install 'samestep[{backend}]'\n")


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("command", ["compare", "agree"])
@pytest.mark.parametrize(
    ("contender", "off"),
    [
        ("torch:compiled", "TORCH_COMPILE_DISABLE=1"),
        ("torch:compiled", "TORCHDYNAMO_DISABLE=1"),
        ("jax", "JAX_DISABLE_JIT=True"),
    ],
)
def test_a_compiler_that_is_switched_off_is_refused(
    program: Program, monkeypatch: pytest.MonkeyPatch, command: str, contender: str, off: str
) -> None:
    monkeypatch.setenv(*off.split("="))
    backend = contender.partition(":")[0]
    reason = f"{off} in the environment turns off the compiler of {backend}, and {contender} asks for compile"
    _refused(program, ["fake", contender], f"{reason}; allowed: without", command)


@pytest.mark.usefixtures("no_process")
def test_a_folder_for_temporary_files_that_cannot_be_used_is_refused(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program.folder / "file").write_text("")
    (program.folder / "file").chmod(0o755)
    (program.folder / "folder").mkdir()
    for named in ("nowhere", "file"):
        monkeypatch.setenv("TMPDIR", named)
        _refused(program, ["fake", "other"], f"TMPDIR={named}: no folder that may be written to; allowed: one that is")
    monkeypatch.setenv("TMPDIR", "folder")
    output.check_scratch()
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "folder")  # root may write everywhere
    _refused(program, ["fake", "other"], "TMPDIR=folder: no folder that may be written to; allowed: one that is there")
    monkeypatch.setenv("TMPDIR", "")
    output.check_scratch()


@pytest.mark.usefixtures("no_process")
def test_an_output_folder_that_cannot_be_written_is_refused(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    (program.folder / "file").write_text("kept")
    (program.folder / "folder").mkdir()
    _refused(program, ["fake", "other", "--out", "file"], "--out file: cannot be made: File exists; allowed: a folder")
    _refused(program, ["fake", "other", "--out", "file/below"], "--out file/below: cannot be made: Not a directory")
    _refused(program, ["fake", "other", "--out", "x" * 300], "cannot be made: File name too long")
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write everywhere
    _refused(program, ["fake", "other", "--out", "folder"], "--out folder: not writable; allowed: a folder you may")


@pytest.mark.usefixtures("no_process")
def test_a_missing_or_damaged_data_file_is_named(program: Program) -> None:
    folder = program.folder / "mnist"
    folder.mkdir()
    arguments = ["fake", "other", "--workload", "mnist-cnn", "--data", "mnist"]
    _refused(program, arguments, "train-images-idx3-ubyte")
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte").write_bytes(b"\0\0\x09\x03")
    _refused(program, arguments, "mnist/train-images-idx3-ubyte")


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonesuch"],
        ["--out"],
    ],
)
def test_what_is_no_option_or_lacks_its_value_is_refused(program: Program, arguments: list[str]) -> None:
    code, out, error = program.run("compare", "fake", "other", *arguments)
    assert (code, out) == (2, "")
    assert arguments[0] in error
    assert "Traceback" not in error
    assert not program.files()


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("command", ["report", "bundle", "verify", "reproduce", "campaign", "launch", "cache"])
def test_a_command_without_its_argument_says_what_it_needs_with_an_example(program: Program, command: str) -> None:
    code, out, error = program.run(command)
    assert (code, out) == (2, "")
    assert f"samestep: samestep {command} needs " in error
    assert f"; for example: samestep {command} " in error


@pytest.mark.usefixtures("no_process")
def test_a_command_without_a_needed_option_names_it(program: Program) -> None:
    code, out, error = program.run("bundle", "result.json")
    assert (code, out) == (2, "")
    assert "samestep bundle needs --out; for example: samestep bundle samestep-out/* --out " in error


@pytest.mark.usefixtures("no_process")
def test_help_version_workloads_and_nothing(program: Program) -> None:
    assert program.run("--version") == (0, f"samestep {__version__}\n", "")
    code, out, _ = program.run("--help")
    assert code == 0
    assert all(command in out for command in ("compare", "workloads", "env"))
    code, out, _ = program.run("compare", "--help")
    assert code == 0
    assert all(option in out for option in ("--workload", "--batch-size", "--precision", "--device", "--out"))
    code, out, error = program.run("workloads")
    assert (code, error) == (0, "")
    assert all(workload in out for workload in ("digits-cnn", "mnist-cnn", "cifar-cnn"))
    code, out, error = program.run()
    assert code == 2
    assert "Usage: " in out + error
    assert not program.files()


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("columns", ["20", "60", "200"])
def test_no_terminal_is_too_narrow_for_what_can_be_trained(
    program: Program, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, error = program.run("workloads")
    assert (code, error) == (0, "")
    assert all(each.name in out and f" {each.batch_size} " in out for each in WORKLOADS.values())
    assert "…" not in out


@pytest.mark.usefixtures("no_process")
def test_what_can_be_trained_is_listed_with_its_optimizer(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = {line.partition(" ")[0]: line for line in program.run("workloads")[1].splitlines()}
    assert WORKLOADS["resnet50"].optimizer.weight_decay > 0
    for name, optimizer in (("digits-cnn", "adam 0.001"), ("resnet50", "sgd 0.1"), ("convnext-tiny", "adamw 0.001")):
        assert f" {optimizer} " in lines[name]


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("command", "said", "unsaid"),
    [
        ("compare", ["over all devices", "--optimizer", "--allow"], []),
        ("fit", ["least memory for this batch is searched for"], ["over all devices"]),
        ("verify", ["Print the checks as JSON alone"], ["result object"]),
        ("diff", ["Print the changes as JSON alone"], ["result object"]),
        ("reproduce", ["Print what differs and the claims as JSON alone"], ["result object"]),
        ("map", ["--weights-map", "--model-args", "--loss"], ["--optimizer", "--weights-from", "--allow"]),
    ],
)
def test_help_says_what_a_command_does_with_an_option(
    program: Program, command: str, said: list[str], unsaid: list[str]
) -> None:
    code, out, error = program.run(command, "--help")
    text = " ".join(out.split())
    assert (code, error) == (0, "")
    assert [each for each in said if each not in text] == []
    assert [each for each in unsaid if each in text] == []
    if command == "compare":
        longest = max(command.deadline for command in commands.COMMANDS.values())
        assert (commands.START_SECONDS, longest) == (300, 21600)


@pytest.mark.usefixtures("no_process")
def test_every_knob_says_what_it_is_in_both_frameworks_and_where_a_tuning_was_measured(program: Program) -> None:
    code, out, error = program.run("knobs")
    assert (code, error) == (0, "")
    for knob in KNOBS.values():
        start = out.index(f"{knob.name}: {knob.summary}\n")
        jax, torch = out[start:].splitlines()[1:3]
        assert jax.split()[0] == "jax"
        assert torch.split()[0] == "torch"
        assert all(len(line.split()) > 1 for line in (jax, torch))
    evidence = [file for _, file in [*TUNED.values(), *SYNCHRONISED.values()]]
    assert out.count("(measured: ") == len(evidence) - evidence.count(None)
    assert out.count("(not measured)") == evidence.count(None)
    assert all(Path(plans.ROOT, file).exists() for file in evidence if file)


def test_a_tuning_for_all_is_that_of_contenders_that_name_none() -> None:
    texts = ["torch", "jax:stock", "torch"]
    assert contenders.add_tuning(texts, None, None) == texts
    assert contenders.add_tuning(texts, "tuned", None) == ["torch:tuned", "jax:stock", "torch:tuned"]
    chosen = contenders.add_tuning(texts, None, "compile,channels-last=off")
    assert chosen == ["torch:compile+channels-last=off", "jax:stock", "torch:compile+channels-last=off"]
    first, _, again = contenders.parse(chosen)
    assert (first.name, again.name) == (chosen[0], f"{chosen[0]}#2")
    assert resolve("torch", first.tuning, "cpu", "digits-cnn")["compile"] is True


def test_what_a_caller_has_closed_gets_no_pipe_of_ours() -> None:
    script = (
        "import os, sys\n"
        "for number in (0, 1, 2): os.close(number)\n"
        "from compare.cli import app\n"
        "sys.argv = ['samestep', 'knobs', '--help']\n"
        "try: app.main()\n"
        "finally: os._exit(os.pipe()[0])\n"  # the lowest number that is free
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=plans.ROOT, check=False)
    assert done.returncode >= 3


@pytest.mark.parametrize(("chosen", "option"), [(("tuned", None), "--tuning"), ((None, "compile"), "--knobs")])
def test_a_tuning_that_no_contender_takes_is_refused(chosen: tuple[str | None, str | None], option: str) -> None:
    with pytest.raises(Refused, match=f"{option}: every contender names its own tuning; allowed: with a contender"):
        contenders.add_tuning(["torch:stock", "jax:stock"], *chosen)


def test_what_a_backend_always_does_may_be_asked_for() -> None:
    everything = "compile+channels-last+fused-optimizer+donation"
    assert resolve("jax", everything, "cpu", "digits-cnn") == {
        "compile": True,
        "donation": True,
        "compiler-flags": "none",
        "kept-heap": False,
        "pieces": False,
        "rematerialisation": False,
        "exported": False,
        "fold-batch-norm": False,
        "constant-weights": False,
        "inline-dispatch": False,
        "fused-batch-norm": False,
        "steps-per-dispatch": 1,
        "graph-capture": False,
        "concurrent-kernels": False,
        "kernel-search": False,
        "input": "resident",
        "overlap-reduction": False,
        "overlap-exchanges": False,
        "parallel": "none",
    }
    assert resolve("torch", everything, "cpu", "digits-cnn")["channels-last"] is True


def test_what_only_makes_later_steps_fast_is_left_out_where_the_first_step_is_to_come_soon() -> None:
    tuned = resolve("torch", "tuned+rematerialisation", "cuda", "resnet50")
    plain = resolve("torch", "stock+channels-last+fused-optimizer+rematerialisation", "cuda", "resnet50")
    assert reduce_compilation("torch", tuned) == plain
    jitted = resolve("jax", "tuned", "cuda", "resnet50")
    assert reduce_compilation("jax", jitted) == drop_search(jitted) == {**jitted, "kernel-search": False}


def test_tuned_requests_on_a_cpu_hold_their_weights_where_that_was_measured_to_win() -> None:
    constant = {
        (backend, workload): resolve(backend, "tuned", "cpu", workload, task="infer")["constant-weights"]
        for backend in ("jax", "torch")
        for workload in ("digits-cnn", "cifar-resnet18")
    }
    assert [pair for pair, is_on in constant.items() if is_on] == [("jax", "digits-cnn"), ("torch", "cifar-resnet18")]


def test_tuned_is_that_of_the_workload_where_it_has_been_measured() -> None:
    tuned = {workload: resolve("torch", "tuned", "cuda", workload) for workload in ("cifar-cnn", "resnet50")}
    several = {workload: int(values["steps-per-dispatch"]) for workload, values in tuned.items()}
    assert several["cifar-cnn"] > several["resnet50"]
    assert resolve("jax", "tuned", "cuda", "resnet50")["kernel-search"] is True
    searching, not_searching = (
        variables.make_child_environment("jax", resolve("jax", tuning, "cuda", "resnet50"), "cuda", False, {})
        for tuning in ("tuned", "tuned+kernel-search=off")
    )
    assert "autotune" not in searching["XLA_FLAGS"]
    assert "--xla_gpu_autotune_level=0" in not_searching["XLA_FLAGS"].split()


def test_tuned_is_that_of_the_precision_where_another_was_measured(tmp_path: Path) -> None:
    def tuned(precision: str) -> dict[str, Value]:
        texts, unread = ["jax:tuned", "jax"], plan.make(Settings(contenders=["jax", "torch"], out=tmp_path)).dataset
        made = plan.make(
            Settings(contenders=texts, out=tmp_path, workload="vgg16", device="cpu", precision=precision),
            dataset=unread,
        )
        return replace(made, device="cuda").knobs(made.contenders[0])

    compiled = resolve("jax", "compiled", "cuda", "vgg16")
    assert tuned("bfloat16") == resolve("jax", "tuned", "cuda", "vgg16", "bfloat16") == compiled
    assert (
        tuned("float32")
        == resolve("jax", "tuned", "cuda", "vgg16")
        == compiled
        | {
            "graph-capture": True,
            "concurrent-kernels": True,
        }
    )
    assert resolve("torch", "tuned", "cuda", "vgg16", "bfloat16") == resolve("torch", "tuned", "cuda", "vgg16")


@pytest.mark.parametrize(("backend", "needed"), [("jax", "graph-capture"), ("torch", "compile")])
def test_kernels_run_together_only_in_what_lets_them(backend: str, needed: str) -> None:
    without = "tuned+graph-capture=off+steps-per-dispatch=1" + ("+compile=off" if needed == "compile" else "")
    assert resolve(backend, "tuned", "cuda", "cifar-cnn")["concurrent-kernels"] is True
    assert resolve(backend, without, "cuda", "cifar-cnn")["concurrent-kernels"] is False
    with pytest.raises(Refused, match=f"concurrent-kernels needs {needed} in {backend}"):
        resolve(backend, f"{without}+concurrent-kernels", "cuda", "cifar-cnn")


def test_a_run_whose_folder_refuses_the_result_says_where_it_is(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    (program.folder / "out").mkdir()
    (program.folder / "out" / "result.json").symlink_to("no-such-folder/result.json")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "kept"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code, _, error = program.run("compare", "fake", "other", "--epochs", "1", "--rounds", "2", "--out", "out")
    assert code == 2
    assert "samestep: cannot write out/no-such-folder/result.json: " in error
    (found,) = (tmp_path / "kept").glob("samestep-result-*/result.json")
    assert error.rstrip().endswith(f"the result is kept: {found}")
    assert json.loads(found.read_text())["comparisons"][0]["rounds"] == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("command", ["env", "knobs", "--help"])
def test_an_output_that_takes_nothing_is_refused_in_a_line(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "compare", command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "samestep: cannot write the output: No space left on device\n")


def test_env_is_one_json_object(program: Program) -> None:
    code, out, error = program.run("env")
    assert (code, error) == (0, "")
    assert {"samestep", "python", "cpu", "nvidia", "packages", "variables"} <= json.loads(out).keys()


COMPARE = ("compare", "fake", "other", "--device", "cpu", "--epochs", "1", "--rounds", "2", "--out", "new/out")


def test_json_is_one_object_the_same_as_in_the_file(program: Program) -> None:
    code, out, error = program.run(*COMPARE, "--json")
    assert (code, error) == (0, "")
    result = json.loads(out)
    assert result == json.loads((program.folder / "new/out/result.json").read_text())
    assert result["command"] == ["samestep", *COMPARE, "--json"]
    assert program.files() == ["new", "new/out", "new/out/result.json"]


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [
        ({"fault": "wrong-gradient"}, 1, "gradient/dense.kernel"),
        ({"fault": "exit", "at": "open"}, 3, "exit code 7"),
    ],
)
def test_the_report_ends_with_the_exit_code_of_what_happened(
    program: Program, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, Any], code: int, said: str
) -> None:
    plans.register(monkeypatch, program.folder.parent / "logs", {"other": behaviour})
    returned, out, error = program.run(*COMPARE)
    assert (returned, error) == (code, "")
    assert "INVALID" in out
    assert said in " ".join(out.split())
    assert out.endswith("result file: new/out/result.json\n")


@pytest.mark.parametrize(("undecided", "code", "shows"), [("pass", 0, True), ("fail", 4, True), ("skip", 0, False)])
def test_an_undecided_verdict_passes_fails_or_is_left_out(
    program: Program, undecided: str, code: int, shows: bool
) -> None:
    returned, out, error = program.run(*COMPARE, "--undecided", undecided)  # two rounds decide nothing
    assert (returned, error) == (code, "")
    assert ("a verdict needs 3 rounds" in out) is shows


def test_every_contender_failing_is_reported(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = {"fault": "refuse", "at": "open"}
    plans.register(monkeypatch, program.folder.parent / "logs", {"fake": fault, "other": fault})
    code, out, error = program.run(*COMPARE)
    assert (code, error) == (3, "")
    assert "scripted refusal" in out


def test_the_module_and_the_script_are_the_same_program() -> None:
    script = [str(Path(sys.executable).parent / "samestep")]
    module = [sys.executable, "-m", "compare"]
    for arguments in (["--version"], ["compare", "fake"]):
        runs = [
            subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=plans.ROOT, check=False)
            for command in (script, module)
        ]
        one, other = ((run.returncode, run.stdout, run.stderr) for run in runs)
        assert one == other
        assert one[0] == (2 if arguments == ["compare", "fake"] else 0)
