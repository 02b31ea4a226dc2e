"""The command `samestep campaign`: its file, its cells, and going on after it was killed."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compare.base.interface import Refused
from compare.cli import app, pair_options
from compare.execution import execute
from compare.results import model, result_file
from compare.studies import campaign_file, campaign_report, estimate, study
from compare.studies.campaign_file import Campaign
from compare.studies.cell_store import CellState, CellStore
from compare.studies.cells import Place
from tests.fakebackend import plans
from tests.unit import markup, programs, result_factory
from tests.unit.programs import Program

SMALL = """
name = "small"

[defaults]
contenders = ["fake", "other"]
device = "cpu"
rounds = 3
epochs = 1
batch_size = 8
deadline = 60.0
"""


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


def read(text: str, folder: Path) -> Campaign:
    path = folder / "campaign.toml"
    path.write_text(text)
    return campaign_file.read(path, pair_options.make_pair)


FAULTS = [
    ("[grid]\nseed = [1]\nbatch = [2]\n", "line 3: unknown key 'batch' in [grid]; did you mean 'batch_norm' or "),
    ("[grid]\nseed = 1\n", "line 2: seed in [grid] is no list with values; allowed: a list of values"),
    ("[grid]\nseed = []\n", "line 2: seed in [grid] is no list"),
    ('[grid]\nworkload = ["digits-cnn", "digit-cnn"]\n', "line 2: unknown workload 'digit-cnn'; did you mean"),
    ('[[comparison]]\nquick = "yes"\n', "line 2: quick 'yes' is not allowed; allowed: true, false"),
    (
        "[grid]\nprecision = ['float32', 'bf16']\n",
        "line 2: precision 'bf16' is not allowed; did you mean 'bfloat16'? allowed: ",
    ),
    (
        "[defaults]\nrounds = 'ten'\n[grid]\nseed = [1]\n",
        "line 2: rounds 'ten' is not allowed; allowed: a whole number",
    ),
    ("[[comparison]]\nseed = 1\n[[comparison]]\n\nsede = 2\n", "line 5: unknown key 'sede' in [comparison]"),
    ("title = 'x'\n[grid]\nseed = [1]\n", "line 1: unknown key 'title'; allowed: name, defaults, grid, comparison"),
    ("name = '../x'\n[grid]\nseed = [1]\n", "line 1: name '../x' is not allowed; allowed: up to 64 letters, digits"),
    (
        "[grid\n",
        "is no valid TOML: Expected ']' at the end of a table declaration (at line 1, column 6); allowed: a campaign",
    ),
    ("[defaults]\nseed = 1\n", "names no comparison; allowed: [grid] with lists, or [[comparison]]"),
    ("[[comparison]]\nrounds = 3\nquick = true\n", "line 1: rounds and quick exclude each other"),
    ("[[comparison]]\njax = 'a.py:f'\n", "line 1: jax: a pair of your own needs image, classes as well"),
    ("[[comparison]]\nworkload = 'resnet'\n", "line 2: unknown workload 'resnet'; did you mean 'resnet50'"),
    ("[[comparison]]\nprecision = 'tf32'\ndevice = 'cpu'\n", "line 1: tf32, cpu: --precision tf32 needs"),
    ("[grid]\nout = ['x']\n", "line 2: unknown key 'out' in [grid]"),
    ("comparison = 3\n", "line 1: comparison is no list; allowed: [[comparison]] tables"),
    (
        "[grid]\nseed = ["
        + ", ".join(map(str, range(101)))
        + "]\nrounds = ["
        + ", ".join(map(str, range(2, 103)))
        + "]",
        "has 10,201 cells",
    ),
]


@pytest.mark.parametrize(("text", "said"), FAULTS, ids=[said[:40] for _, said in FAULTS])
def test_a_fault_of_the_file_is_named_with_its_line_before_anything_runs(
    program: Program, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setattr(execute, "execute_until_interrupted", None)
    monkeypatch.setattr("compare.machine.environment.is_installed", lambda package: True)
    (program.folder / "c.toml").write_text(text)
    code, out, error = program.run("campaign", "c.toml", "--store", "store")
    assert (code, out) == (2, "")
    assert f"c.toml, {said}" in error or f"c.toml: {said}" in error or said in error


def test_the_grid_is_every_combination_and_comparisons_stand_beside_it(tmp_path: Path) -> None:
    grid = "[grid]\nworkload = ['digits-cnn', 'cifar-cnn']\nbatch_size = [8, 16]\n[[comparison]]\nseed = 3\n"
    campaign = read(SMALL + grid + "[[comparison]]\nseed = 3\n", tmp_path)
    assert [each.cell.name for each in campaign.cells] == [
        "digits-cnn, batch size 8",
        "digits-cnn, batch size 16",
        "cifar-cnn, batch size 8",
        "cifar-cnn, batch size 16",
        "seed 3",
    ]
    settings = campaign.cells[3].cell.settings
    assert (settings.workload, settings.batch_size, settings.rounds) == ("cifar-cnn", 16, 3)
    assert settings.out == Path("samestep-out/small/cells/cifar-cnn-batch-size-16")
    assert [each.is_listed for each in campaign.cells] == [False] * 4 + [True]


def test_a_pair_of_the_users_own_is_a_comparison(tmp_path: Path) -> None:
    text = "[[comparison]]\njax = 'a.py:f'\ntorch = 'b.py:g'\ninput = '8x8x3'\nclasses = 4\nbatch_size = 8\n"
    (each,) = read(text, tmp_path).cells
    workload: Any = each.cell.settings.workload
    assert (workload.model.family, workload.model.image, workload.model.classes) == ("pair", (8, 8, 3), 4)
    assert each.cell.name == "b.py:g, batch size 8"


def test_what_a_cell_says_replaces_defaults_that_exclude_it(tmp_path: Path) -> None:
    text = "[defaults]\nquick = true\nworkload = 'unet'\n[[comparison]]\nrounds = 7\n[[comparison]]\nenergy = true\n"
    first, second = read(text, tmp_path).cells
    assert (first.cell.settings.rounds, second.cell.settings.rounds) == (7, 5)
    assert (first.cell.settings.energy, second.cell.settings.energy) == (True, True)


def test_defaults_of_training_are_not_for_requests(tmp_path: Path) -> None:
    defaults = "[defaults]\nepochs = 2\nbatch_size = 8\nbatch_sizes = [1, 4]\naccumulate = 2\n"
    train, infer = read(defaults + "[grid]\ntask = ['train', 'infer']\n", tmp_path).cells
    assert (train.cell.settings.epochs, train.cell.settings.batch_sizes) == (2, None)
    settings = infer.cell.settings
    assert (settings.epochs, settings.batch_size, settings.batch_sizes, settings.accumulate) == (None, None, [1, 4], 1)


@pytest.mark.slow
def test_a_campaign_runs_keeps_fails_and_goes_on(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_report, "write", lambda *_: [])
    script = {"third": {"fault": "raise", "at": "start"}, "other": {"step_seconds": 8e-3}}
    plans.register(monkeypatch, program.folder.parent / "logs", script)
    text = SMALL + "[grid]\nseed = [0, 1]\nprecision = ['float32', 'tf32']\n"
    file = program.folder / "c.toml"
    file.write_text(text)
    arguments = ("campaign", "c.toml", "--store", "store", "--out", "out")

    code, out, error = program.run(*arguments, "--list")
    assert (code, error) == (0, "")
    assert "4 cells: 2 refused, 2 pending; the rest takes about" in out

    code, out, error = program.run(*arguments, "--only", "seed 0*")
    assert code == 2, error  # one of them is refused here
    value = json.loads((program.folder / "out" / "campaign.json").read_text())
    assert [cell["status"] for cell in value["cells"]] == ["done", "refused", "pending", "refused"]

    code, out, error = program.run(*arguments)
    assert code == 2
    assert "seed 0, float32: done" not in out.replace("done, kept", "")
    value = json.loads((program.folder / "out" / "campaign.json").read_text())
    assert [cell["status"] for cell in value["cells"]] == ["done", "refused", "done", "refused"]
    assert "--precision tf32 needs --device cuda" in value["cells"][1]["reason"]
    cell = value["cells"][0]
    assert cell["settings"] == {
        "contenders": ["fake", "other"],
        "device": "cpu",
        "rounds": 3,
        "epochs": 1,
        "batch_size": 8,
        "deadline": 60.0,
        "seed": 0,
        "precision": "float32",
    }
    result = result_file.read(program.folder / "out" / cell["result"])
    assert result.spec.seed == 0
    assert len(cell["key"]) == 64
    assert cell["place"]["cores"] == 2

    file.write_text(text.replace("'tf32'", "'float64'") + "[[comparison]]\ncontenders = ['fake', 'third']\n")
    code, out, error = program.run(*arguments, "--only", "*third*")
    assert code == 3
    assert "third: crash" in out
    code, out, error = program.run(*arguments, "--list")
    assert "5 cells: 2 done, 1 failed, 2 pending" in out
    assert "failed cells are kept too; --redo failed runs them again" in out
    code, out, error = program.run(*arguments, "--only", "*third*", "--redo", "failed", "--json")
    assert code == 3
    assert [cell["status"] for cell in json.loads(out)["cells"]] == ["done", "pending", "done", "pending", "failed"]


def test_undecided_cells_are_kept_until_they_are_named(program: Program) -> None:
    (program.folder / "c.toml").write_text(SMALL.replace("rounds = 3", "rounds = 2") + "[grid]\nseed = [0]\n")
    arguments = ("campaign", "c.toml", "--store", "store", "--out", "out")
    assert program.run(*arguments, "--undecided", "fail")[0] == 4
    program.run(*arguments, "--list", "--redo", "undecided")
    code, out, _ = program.run(*arguments, "--list")
    assert "undecided, kept" in out, "a list deletes nothing"
    assert "undecided cells are kept too; --redo undecided runs them again" in out
    code, out, _ = program.run(*arguments, "--redo", "undecided")
    assert code == 0
    assert "1 pending" in out


def test_an_interruption_counts_cells_that_other_processes_have_finished(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program.folder / "c.toml").write_text(SMALL + "[grid]\nseed = [0]\n")
    run = study.Study.run

    def run_elsewhere(self: study.Study, _: study.OnChange) -> list[CellState]:
        run(self, lambda _: None)
        raise KeyboardInterrupt

    monkeypatch.setattr(study.Study, "run", run_elsewhere)
    _, _, error = program.run("campaign", "c.toml", "--store", "store")
    assert "1 of 1 cells are finished and kept" in error


PAGES = ["report.html", "report.md", "report.tex", "summary.pdf", "summary.png", "summary.svg"]


@pytest.mark.slow
def test_the_report_of_kept_cells_is_that_of_the_run_which_made_them(program: Program) -> None:
    (program.folder / "c.toml").write_text(SMALL + "[grid]\nseed = [0, 1]\n")
    code, out, _ = program.run("campaign", "c.toml", "--store", "store", "--out", "first")
    assert code == 0
    assert "  other  4.000  1.000  " in out
    assert program.run("campaign", "c.toml", "--store", "store", "--out", "second")[0] == 0
    first, second = (program.folder / name for name in ("first", "second"))
    for name in [*PAGES, "cells/seed-0/result.json", "cells/seed-1/result.json"]:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    cells = [json.loads((folder / "campaign.json").read_text())["cells"] for folder in (first, second)]
    assert cells[0] == cells[1]
    page = markup.check_page((first / "report.html").read_text())
    assert next(words for level, words in page.headings if level == 2) == "All cells"
    assert sum(level == 2 for level, _ in page.headings) == 3
    tables = markup.check_latex((first / "report.tex").read_text())
    assert list(tables) == ["samestep-campaign-cells", "samestep-campaign-summary", "samestep-campaign-matrix"]
    markup.check_markdown((first / "report.md").read_text())
    code, out, error = program.run("verify", "first/small.zip")
    assert (code, error, out.count("report.txt follows from the result")) == (0, "", 2)


def test_cells_of_unlike_machines_are_said_not_to_be_compared(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = read(SMALL + "[grid]\nseed = [0, 1]\n", tmp_path)
    data = json.dumps(result_factory.complete(result_factory.make_result())).encode()
    places = [Place(name, {"cpu": name, "cores": 2}) for name in ("A CPU", "Another CPU")]
    states = [
        CellState(each.cell, "done", None, data, place, 3.0) for each, place in zip(campaign.cells, places, strict=True)
    ]
    report = campaign_report.make_report(campaign, states, is_full=False)
    assert report.overview is not None
    assert report.overview.lines == [
        "cells ran on unlike machines, and their times must not be compared with each other: A CPU, 2 cores: seed 0; "
        "Another CPU, 2 cores: seed 1."
    ]
    assert [row[-1] for row in report.overview.tables[0].rows] == ["A CPU, 2 cores", "Another CPU, 2 cores"]
    alike = campaign_report.make_report(campaign, [states[0], replace(states[1], place=places[0])], is_full=False)
    assert alike.overview is not None
    assert not alike.overview.lines


def test_unknown_cells_are_refused(program: Program) -> None:
    (program.folder / "c.toml").write_text(SMALL + "[grid]\nseed = [0]\n")
    for wrong, said in (
        (
            ("--only", "seed 9"),
            "--only 'seed 9' names no cell; did you mean 'seed 0'? allowed: a name such as 'seed 0'",
        ),
        (("--only", "eed"), "--only 'eed' names no cell; did you mean '*eed*'? allowed: a name"),
        (
            ("--redo", "faild"),
            "--redo 'faild' names no cell; did you mean 'failed'? allowed: failed, undecided, a name",
        ),
    ):
        for more in ((), ("--list",)):
            code, _, error = program.run("campaign", "c.toml", *wrong, *more)
            assert (code, said in error) == (2, True), error


def test_undecided_cells_end_as_the_option_says(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_report, "write", lambda *_: [])
    plans.register(monkeypatch, program.folder.parent / "logs", {"other": {"launch_noise": 0.2}})
    (program.folder / "c.toml").write_text(SMALL + "margin = 0.5\n[grid]\nseed = [0]\n")
    assert program.run("campaign", "c.toml", "--store", "store", "--undecided", "fail")[0] == 4
    assert program.run("campaign", "c.toml", "--store", "store")[0] == 0


TWELVE = SMALL + "[grid]\nseed = [0, 1, 2]\nbatch_size = [8, 16]\nepochs = [1, 2]\n"


def _run_stub(folder: Path, argv: list[str]) -> None:
    """Run the program with cells that only sleep, and note every start of one."""
    os.chdir(folder)
    os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)

    def stub(plan: Any, command: Any, *, part: str = "") -> Any:
        with (folder / "starts").open("a") as stream:
            stream.write(f"{part.partition(', ')[2]}\n")
        time.sleep(0.03)
        result = result_factory.make_result(spec={"seed": plan.seed, "batch_size": plan.batch_size})
        typed = model.from_json(result_factory.complete(result))
        return typed, result_file.write(typed, plan.out), None

    execute.execute_until_interrupted = stub
    campaign_report.write = lambda *_: []  # drawing takes longer than all cells
    sys.argv = argv
    app.main()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, which another test of this process may have imported
def test_a_campaign_that_is_killed_twenty_times_runs_every_cell_once(program: Program) -> None:
    (program.folder / "c.toml").write_text(TWELVE)
    argv = ["samestep", "campaign", "c.toml", "--store", "store", "--out", "out"]
    context, moments = multiprocessing.get_context("fork"), random.Random(7)
    finished, starts = list[str](), program.folder / "starts"
    starts.write_text("")
    for kill in range(21):
        before = len(starts.read_text().splitlines())
        process = context.Process(target=_run_stub, args=(program.folder, argv))
        process.start()
        if kill < 20:
            process.join(moments.uniform(0.0, 0.6))
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, signal.SIGKILL)
        process.join(120)
        now = starts.read_text().splitlines()[before:]
        assert not set(now) & set(finished)  # nothing that was kept ran again
        assert len(set(now)) == len(now)
        store = CellStore(program.folder / "store")
        cells = [each.cell for each in read(TWELVE, program.folder).cells]
        finished = [f"{cell.name}: " for cell in cells if store.find(cell) is not None]
    assert len(finished) == 12
    value = json.loads((program.folder / "out" / "campaign.json").read_text())
    assert [cell["status"] for cell in value["cells"]] == ["done"] * 12
    for cell in value["cells"]:
        result = result_file.read(program.folder / "out" / cell["result"])
        assert (result.spec.seed, result.spec.batch_size) == (cell["settings"]["seed"], cell["settings"]["batch_size"])


def test_finished_cells_correct_the_estimate(tmp_path: Path, program: Program) -> None:
    cells = [each.cell for each in read(SMALL + "[grid]\nseed = [0, 1, 2]\n", tmp_path).cells]
    place = Place("A CPU", {"cpu": "A CPU", "cores": 2})
    pending = [CellState(cell) for cell in cells]
    rule = estimate.estimate(pending, {"cpu": place})
    assert rule == (240.0, 240.0)
    finished = [CellState(cells[0], "done", place=place, seconds=800.0), *pending[1:]]
    assert estimate.estimate(finished, {"cpu": place}) == (1600.0, 1600.0)
    assert estimate.estimate(finished, {"cpu": place}, at_once=2) == (800.0, 800.0)
    elsewhere = Place("Another", {})
    assert estimate.estimate(finished, {"cpu": elsewhere}) == (160.0, 160.0)
    assert str(estimate.Seconds(61.0, 7200.0)) == "about 60 s to 2.0 h"
    with pytest.raises(Refused):
        read("[grid]\nseed = [-1]\n", tmp_path)
