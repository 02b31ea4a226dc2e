"""However the parent ends, no process of its children's families stays."""

import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from compare.execution import round_validity
from compare.report import telemetry_text
from compare.reproduce import recompute
from compare.results import consistency, model, result_file
from compare.studies import scaling_report, scaling_result
from tests.fakebackend import plans
from tests.unit.result_factory import typed

COMPARE = ["compare", "fake", "other", "--device", "cpu", "--epochs", "1", "--rounds", "2"]

pytestmark = pytest.mark.slow


class Parents:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self, arguments: list[str], names: Sequence[str] = ("fake", "other"), *, forks: bool = True, **behaviour: Any
    ) -> "subprocess.Popen[str]":
        """Start a program. Forked children start faster, and are not the program's own children."""
        variables = plans.environment(self.folder, dict.fromkeys(names, behaviour))
        variables |= {"SAMESTEP_FORKS": "1"} if forks else {}
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process


@pytest.fixture
def parents(tmp_path: Path) -> Generator[Parents]:
    parents = Parents(tmp_path)
    # What a script starts in its background ignores Ctrl-C, and hands that on to whatever it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield parents
    signal.signal(signal.SIGINT, before)
    for process in parents.processes:
        process.kill()
        process.communicate()
    assert not plans.remaining(plans.started(tmp_path))


def test_a_killed_parent_leaves_no_child_that_works(parents: Parents) -> None:
    parent = parents.start(
        ["-m", "tests.fakebackend.program", *COMPARE], forks=False, fault="grandchild-hang", at="open"
    )
    plans.until(lambda: (parents.folder / "grandchildren.log").exists())
    parent.kill()
    parent.wait()
    assert not plans.remaining(plans.started(parents.folder))


def test_a_killed_parent_leaves_no_grandchild_of_a_child_that_waits(parents: Parents, tmp_path: Path) -> None:
    code = "import sys, time\nfrom pathlib import Path\nfrom compare.execution.child import Child\n"
    code += "child = Child('fake', 'tests.fakebackend', {}, Path(sys.argv[1]))\nchild.greet(20)\n"
    code += "print('greeted', flush=True)\ntime.sleep(60)\n"
    parent = parents.start(["-c", code, str(tmp_path)], fault="grandchild", at="start")
    assert parent.stdout is not None
    assert parent.stdout.readline() == "greeted\n"
    family = plans.started(tmp_path)
    assert len(plans.remaining(family, within=0)) == 2
    parent.kill()
    parent.wait()
    assert not plans.remaining(family)


# Process 0 of a contender trains, 1 makes its certificate.
@pytest.mark.parametrize(("number", "process"), [(signal.SIGTERM, 0), (signal.SIGINT, 1), (signal.SIGHUP, 0)])
def test_a_signal_ends_the_program_and_everything_that_it_started(
    parents: Parents, number: signal.Signals, process: int
) -> None:
    parent = parents.start(
        ["-m", "tests.fakebackend.program", *COMPARE],
        forks=False,
        fault="grandchild-hang",
        at="run",
        process=process,
    )
    log = parents.folder / "grandchildren.log"
    plans.until(lambda: log.exists() and log.read_text().strip() != "")
    started = {int(pid) for pid in log.read_text().split()}  # by either contender, or both
    family = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
    # The processes of both contenders, and all that they have started.
    assert len(family) >= 3
    assert started <= {*family}
    parent.send_signal(number)
    out, error = parent.communicate(timeout=plans.DEADLINE)
    assert parent.returncode == 128 + number
    assert out == ""
    assert "Traceback" not in error
    assert not plans.remaining(family)
    assert not list(parents.folder.glob("samestep-out/*/result.json"))


# Process 3 is the first round's. One round is enough for no ratio, none for no figure, but both certificates are there.
@pytest.mark.parametrize(
    ("number", "process", "whole"),
    [
        (signal.SIGINT, 3, "interrupted before one of 4 rounds was whole; all that came before them is kept"),
        (signal.SIGTERM, 4, "interrupted after 1 of 4 rounds, which are kept"),
    ],
)
def test_what_came_before_the_rounds_is_kept(
    parents: Parents, number: signal.Signals, process: int, whole: str
) -> None:
    arguments = ["-m", "tests.fakebackend.program", *COMPARE[:-1], "4", "--cold-compile"]
    parent = parents.start(arguments, ["other"], fault="grandchild-hang", at="run", process=process)
    plans.until(lambda: (parents.folder / "grandchildren.log").exists())
    parent.send_signal(number)
    out, error = parent.communicate(timeout=plans.DEADLINE)
    assert (parent.returncode, out) == (128 + number, "")
    (path,) = parents.folder.glob("samestep-out/*/result.json")
    assert f"samestep: {whole}: {path.relative_to(parents.folder)}\n" in error
    stored = result_file.read(path)
    consistency.check_verdicts(stored)
    result = model.to_json(stored)
    assert (result["spec"]["rounds"], result["spec"]["rounds_requested"]) == (process - 3, 4)
    (comparison,) = result["comparisons"]
    why = f"interrupted after {process - 3} of 4 rounds"
    assert (comparison["verdict"], comparison["reason"]) == ("INCONCLUSIVE", why)
    assert result["agreement"]["status"] == "pass"
    assert all(each["memory"] and each["training"] for each in result["contenders"])
    reported = subprocess.run(
        [sys.executable, "-m", "compare", "report", path], capture_output=True, text=True, check=True
    ).stdout
    assert f"the run was {why}" in reported
    assert f"other against fake: INCONCLUSIVE, {why}" in " ".join(reported.split())
    assert "final loss" in reported  # as of a comparison, not of a certificate alone


def test_what_came_again_before_an_interruption_is_told(parents: Parents) -> None:
    fake = ["-m", "tests.fakebackend.program"]
    first = parents.start([*fake, *COMPARE[:-1], "3", "--cold-compile", "--out", "stored"])
    first.communicate(timeout=plans.DEADLINE)
    assert first.returncode == 0
    again = [*fake, "reproduce", "stored", "--out", "again"]
    before = len([*parents.folder.glob("other-*.pid")])
    parent = parents.start(again, ["other"], fault="grandchild-hang", at="run", process=before + 4)
    plans.until(lambda: (parents.folder / "grandchildren.log").exists())
    parent.send_signal(signal.SIGTERM)
    out, error = parent.communicate(timeout=plans.DEADLINE)
    assert (parent.returncode, "Traceback" in error) == (128 + signal.SIGTERM, False)
    assert "samestep: interrupted after 1 of 3 rounds, which are kept: again/result.json\n" in error
    assert out.endswith("result file: again/result.json\n")
    told = json.loads((parents.folder / "again" / "reproduction.json").read_text())
    claims = {each["subject"].rpartition(": ")[2]: each["outcome"] for each in told["claims"]}
    assert claims["agreement"] == "REPRODUCED"
    assert claims["speed"] == "INCONCLUSIVE"


_SIGNALLED = ["-m", "tests.fakebackend.signalled"]
_SCALE = ["scale", "fake:stock+ddp", "other:stock+ddp", "--devices", "1,2", "--batch-size", "8", *COMPARE[3:]]


@pytest.mark.parametrize(
    ("asked", "files"),
    [
        (["compare", "fake", "other", *COMPARE[3:]], ["result.json"]),
        (["agree", "fake", "other", "--device", "cpu", "--epochs", "1", "--seeds", "2"], ["result.json"]),
        (_SCALE, ["devices-1/result.json", "result.json"]),
    ],
)
def test_signals_that_come_when_all_is_measured_wait_until_it_is_written(
    parents: Parents, asked: list[str], files: list[str]
) -> None:
    parent = parents.start([*_SIGNALLED, "comparison", *asked, "--out", "out"])
    out, error = parent.communicate(timeout=plans.DEADLINE)
    assert (parent.returncode, out, "Traceback" in error) == (128 + signal.SIGTERM, "", False)
    assert f"interrupted at the end; all that came before it is kept: out/{files[0]}\n" in error
    found = parents.folder / "out"
    assert sorted(str(each.relative_to(found)) for each in found.rglob("result.json")) == files


def test_signals_that_come_when_all_numbers_of_devices_are_finished_wait_until_the_scaling_is_written(
    parents: Parents,
) -> None:
    parent = parents.start([*_SIGNALLED, "scaling", *_SCALE, "--out", "out"])
    out, error = parent.communicate(timeout=plans.DEADLINE)
    assert (parent.returncode, out, "Traceback" in error) == (128 + signal.SIGTERM, "", False)
    assert "samestep: interrupted after 2 of 2 numbers of devices, which are kept: out/result.json\n" in error
    assert len(scaling_result.load(parents.folder / "out" / "result.json").scaling) == 4


def test_an_interruption_goes_on_where_the_result_cannot_be_written(parents: Parents) -> None:
    parent = parents.start([*_SIGNALLED, "comparison", "no-room", *COMPARE, "--out", "out"])
    _, error = parent.communicate(timeout=plans.DEADLINE)
    assert (parent.returncode, "Traceback" in error) == (128 + signal.SIGTERM, False)
    assert "samestep: no room anywhere\n" in error


# Process 5 is the third round's. In turns, the first contender has been timed in it when the other's begins.
@pytest.mark.parametrize(("number", "design"), [(signal.SIGTERM, "turns"), (signal.SIGINT, "alternating")])
def test_rounds_that_were_whole_before_a_signal_are_kept(
    parents: Parents, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, design: str
) -> None:
    monkeypatch.setattr(round_validity, "FOREIGN_CORES", math.inf)
    monkeypatch.setattr(recompute, "WINDOW_ROUNDING", math.inf)  # scripted time passes in no window
    arguments = ["-m", "tests.fakebackend.program", *COMPARE[:-1], "4", "--design", design]
    parent = parents.start(arguments, ["other"], fault="grandchild-hang", at="run", process=5)
    plans.until(lambda: (parents.folder / "grandchildren.log").exists())
    parent.send_signal(number)
    out, error = parent.communicate(timeout=plans.DEADLINE)
    assert parent.returncode == 128 + number
    assert out == ""
    (path,) = parents.folder.glob("samestep-out/*/result.json")
    assert f"samestep: interrupted after 2 of 4 rounds, which are kept: {path.relative_to(parents.folder)}\n" in error
    result = result_file.load(path)
    assert (result["spec"]["rounds"], result["spec"]["rounds_requested"]) == (2, 4)
    assert [len(each["step_seconds"]["samples"]) for each in result["contenders"]] == [2, 2]
    assert [comparison["rounds"] for comparison in result["comparisons"]] == [2]
    assert recompute.find_mismatches(model.from_json(result)) == []
    assert "the run was interrupted after 2 of 4 rounds" in list(telemetry_text.list_lines(typed(result)))


# On each number of devices process 0 of a contender trains, 1 makes the certificate, 2 takes the memory, 3 to 6 are of
# the four rounds: 7 trains on two devices, 12 is the third round's there.
@pytest.mark.parametrize(
    ("number", "process", "rounds"),
    [
        (signal.SIGINT, 7, [4]),
        (signal.SIGTERM, 12, [4, 2]),
    ],
)
def test_numbers_of_devices_that_were_whole_before_a_signal_are_kept(
    parents: Parents, number: signal.Signals, process: int, rounds: list[int]
) -> None:
    devices = [1, 2, 4][: len(rounds)]
    asked = [
        "scale",
        "fake:stock+ddp",
        "other:stock+ddp",
        "--devices",
        "1,2,4",
        "--batch-size",
        "8",
        *COMPARE[3:-1],
        "4",
    ]
    parent = parents.start(
        ["-m", "tests.fakebackend.program", *asked, "--out", "out"], fault="grandchild-hang", at="run", process=process
    )
    plans.until(lambda: (parents.folder / "grandchildren.log").exists())
    parent.send_signal(number)
    out, error = parent.communicate(timeout=plans.DEADLINE)
    assert (parent.returncode, out) == (128 + number, "")
    assert (
        f"samestep: interrupted after {len(rounds)} of 3 numbers of devices, which are kept: out/result.json\n" in error
    )
    result = scaling_result.load(parents.folder / "out" / "result.json")
    assert (list(result.spec.devices), result.spec.devices_requested) == (devices, (1, 2, 4))
    assert [len(entry.samples) for entry in result.scaling] == rounds * 2
    assert (parents.folder / "out" / "scaling.svg").exists() == (len(devices) > 1)
    console = Console(file=io.StringIO(), width=200)
    scaling_report.render(result, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert f"the run was interrupted after {len(rounds)} of 3 numbers of devices (1, 2, 4)" in text
    last = f"interrupted after 2 of 4 rounds on {devices[-1]} device"
    assert (last in text) == (rounds[-1] == 2)
    counted = "1 device" if devices[-1] == 1 else f"{devices[-1]} devices"
    assert (f"samestep: {counted}: {last.partition(' on ')[0]}, which are kept" in error) == (rounds[-1] == 2)


def test_a_search_for_a_smaller_batch_that_is_interrupted_loses_no_round(parents: Parents) -> None:
    parent = parents.start(
        ["-m", "tests.fakebackend.program", *COMPARE[:3], "third", *COMPARE[3:], "--out", "out", "--cold-compile"],
        names=["third"],
        **{"most_images": 40, "fault": "grandchild-hang", "at": "open", "process": 1},
    )
    plans.until(lambda: (parents.folder / "grandchildren.log").exists())
    parent.send_signal(signal.SIGINT)
    out, error = parent.communicate(timeout=plans.DEADLINE)
    assert (parent.returncode, out) == (128 + signal.SIGINT, "")
    kept = "in the search for a smaller batch; all that came before it is kept: out/result.json"
    assert f"samestep: interrupted {kept}\n" in error
    result = result_file.read(parents.folder / "out" / "result.json")
    consistency.check_verdicts(result)
    *timed, short = model.to_json(result)["contenders"]
    assert [len(each["step_seconds"]["samples"]) for each in timed] == [2, 2]
    assert short["status"] == "oom"


@pytest.mark.parametrize(("process", "kept"), [(0, ""), (4, "out/devices-1/result.json")])
def test_a_scaling_that_is_interrupted_before_any_number_of_devices_is_whole_has_no_result(
    parents: Parents, process: int, kept: str
) -> None:
    asked = ["scale", "fake:stock+ddp", "other:stock+ddp", "--batch-size", "8", *COMPARE[3:], "--out", "out"]
    parent = parents.start(
        ["-m", "tests.fakebackend.program", *asked], fault="grandchild-hang", at="run", process=process
    )
    plans.until(lambda: (parents.folder / "grandchildren.log").exists())
    parent.send_signal(signal.SIGTERM)
    _, error = parent.communicate(timeout=plans.DEADLINE)
    assert (parent.returncode, "Traceback" in error) == (128 + signal.SIGTERM, False)
    said = "interrupted after 1 of 2 rounds, which are" if kept else "interrupted before there was anything to"
    assert f"samestep: 1 device: {said}" in error
    found = [str(each.relative_to(parents.folder)) for each in parents.folder.rglob("result.json")]
    assert found == ([kept] if kept else [])


def test_a_search_that_is_interrupted_says_that_nothing_is_kept_and_leaves_no_folder(parents: Parents) -> None:
    asked = ["fit", "fake", "--device", "cpu", "--out", "out/fit"]
    parent = parents.start(["-m", "tests.fakebackend.program", *asked], fault="grandchild-hang", at="open")
    plans.until(lambda: (parents.folder / "grandchildren.log").exists())
    parent.send_signal(signal.SIGINT)
    _, error = parent.communicate(timeout=plans.DEADLINE)
    assert (parent.returncode, "Traceback" in error) == (128 + signal.SIGINT, False)
    assert "samestep: interrupted before all searches were done, and nothing is kept" in error
    assert not (parents.folder / "out").exists()


def test_a_result_that_replaces_another_says_so_and_takes_its_pictures_away(parents: Parents) -> None:
    folder = parents.folder / "out"
    folder.mkdir()
    for name in (result_file.FILE_NAME, "trajectory.svg", "scaling.svg", "notes.txt"):
        (folder / name).write_text("older")
    parent = parents.start(["-m", "tests.fakebackend.program", *COMPARE, "--out", "out"])
    _, error = parent.communicate()
    assert "samestep: out/result.json was there before, and is replaced" in error
    assert {each.name for each in folder.iterdir()} == {result_file.FILE_NAME, "notes.txt"}
    assert result_file.load(folder / result_file.FILE_NAME)
