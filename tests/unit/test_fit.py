"""`samestep fit` with the fake backends: real processes with a scripted memory, in images and in bytes."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from compare.base import typed_json
from compare.base.commands import Block, Command
from compare.base.interface import Refused
from compare.data import synthetic
from compare.execution import batch_trial, bisection, child
from compare.machine import environment, variables
from compare.settings.options import Settings
from compare.studies import fit_report as report
from compare.studies import fit_result, fitting
from compare.studies.fitting import MEBIBYTE
from tests.fakebackend import plans

Result = dict[str, Any]
GPUS = [
    {"index": 0, "uuid": "GPU-11aa", "memory_bytes": 80 * 2**30, "mig": False},
    {"index": 1, "uuid": "GPU-22bb", "memory_bytes": 140 * 2**30, "mig": False},
    {"index": 2, "uuid": "GPU-33cc", "memory_bytes": 40 * 2**30, "mig": True},
    {"index": 3, "uuid": None, "memory_bytes": None, "mig": None},
]
# The fake processes need some memory of their own under a real limit. The scripted memory is far above that.
BASE = 64 * MEBIBYTE


class Stage:
    """Runs whole searches with scripted contenders in a folder of their own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self.progress: list[tuple[str, int, int]] = []

    def make(self, *texts: str, script: dict[str, dict[str, Any]] | None = None, **changes: Any) -> fitting.Task:
        plans.register(self._monkeypatch, self.folder, script)
        values: dict[str, Any] = {
            "device": "cpu",
            "deadline": plans.DEADLINE,
            "memory": 1000,
            "batch_size": 8,
            "out": self.folder / "out",
        }
        values |= changes
        memory = values.pop("memory")
        return fitting.make(Settings(contenders=texts or ("fake",), **values), memory=memory)

    def run(self, *texts: str, script: dict[str, dict[str, Any]] | None = None, **changes: Any) -> list[Result]:
        """Return the contenders of the result."""
        task = self.make(*texts, script=script, **changes)
        found = fitting.run(task, lambda *step: self.progress.append(step))
        assert not plans.remaining(plans.started(self.folder), within=0.5)
        return typed_json.write(fit_result.build(task, found, ["samestep", "fit"]).contenders)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


@pytest.fixture
def roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least memory may be found roughly, in half of the tries: the test is about something else."""
    monkeypatch.setattr(bisection, "PRECISION", 1.0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with the GPUs above. No framework takes part, so nothing looks for them."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    monkeypatch.setattr(environment, "describe", lambda: {"nvidia": {"gpus": GPUS}})


def check_tries(contender: Result) -> None:
    """Each try says why it did not fit, if it did not, and each is a process of its own."""
    for attempt in contender["tries"]:
        assert set(attempt) == {"batch_size", "memory_limit_bytes", "fitted", "reason"}
        assert attempt["fitted"] == (attempt["reason"] is None)


@pytest.mark.usefixtures("roughly")
def test_a_scripted_capacity_in_images_is_found_exactly(stage: Stage) -> None:
    (found,) = stage.run(script={"fake": {"most_images": 21}})
    assert (found["status"], found["reason"], found["stopped_by"]) == ("ok", None, "memory")
    assert (found["largest_batch"], found["largest_batch_exact"], found["smallest_failed_batch"]) == (21, True, 22)
    check_tries(found)
    within = [each["batch_size"] for each in found["tries"] if each["memory_limit_bytes"] == 1000 * MEBIBYTE]
    assert within == [8, 16, 32, 24, 20, 22, 21]  # from the asked batch
    assert len(plans.started(stage.folder)) == len(found["tries"])


def test_a_scripted_need_in_bytes_decides_both_searches(stage: Stage) -> None:
    need = {"base_bytes": BASE, "image_bytes": MEBIBYTE}
    fake, other = stage.run(
        "fake",
        "other:tuned",
        script={"fake": need, "other": need | {"image_bytes": 2 * MEBIBYTE}},
        memory=200,
        batch_size=64,
    )
    assert (fake["largest_batch"], fake["largest_batch_exact"]) == (136, True)
    assert (other["largest_batch"], other["largest_batch_exact"]) == (68, True)
    for found, needed in ((fake, BASE + 64 * MEBIBYTE), (other, BASE + 128 * MEBIBYTE)):
        assert needed <= found["smallest_memory_bytes"] <= needed * 1.02
        assert needed * 0.98 <= found["largest_failed_memory_bytes"] < needed
        assert (found["status"], found["versions"].keys()) == ("ok", {"numpy"})
        check_tries(found)
        last = found["tries"][-1]
        assert last["batch_size"] == 64
    assert stage.progress[0] == ("fake: batch 2", 0, 2)
    assert stage.progress[1] == ("fake: batch 64 in 200 MiB", 0, 2)
    assert stage.progress[-1] == ("fit", 2, 2)


def test_the_asked_batch_and_dispatches_of_many_steps(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    call = child.Child.call

    def spied(self: child.Child, command: Command[Any]) -> Any:
        if isinstance(command, Block):
            steps.append(command.steps)
        return call(self, command)

    monkeypatch.setattr(child.Child, "call", spied)
    script = {"fake": {"base_bytes": BASE, "image_bytes": MEBIBYTE}}
    (found,) = stage.run("fake:steps-per-dispatch=2", script=script, memory=80, batch_size=100)
    assert set(steps) == {4}
    needed = BASE + 100 * MEBIBYTE
    assert needed <= found["smallest_memory_bytes"] <= needed * 1.02
    assert found["largest_batch"] == 16


@pytest.mark.usefixtures("roughly")
def test_only_one_batch_of_the_right_images_is_trained_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    save = batch_trial.dataset_file.save

    def spied(dataset: Any, path: Path) -> None:
        seen.append((*dataset.train.images.shape, len(dataset.test.labels)))
        save(dataset, path)

    monkeypatch.setattr(batch_trial.dataset_file, "save", spied)
    (found,) = stage.run(workload="mnist-cnn", script={"fake": {"most_images": 3}}, batch_size=64)
    assert found["status"] == "oom"  # the asked batch of 64
    assert seen == [(size, 28, 28, 1, 0) for size in (2, 64, 32, 16, 8, 4, 2, 3, 64)]


@pytest.mark.usefixtures("roughly")
@pytest.mark.parametrize(
    ("fault", "at", "status", "reason"),
    [
        ("exit", "start", "crash", "batch 2: try: starting: ended with exit code 7; last output: nothing"),
        ("kill", "feed", "crash", "batch 2: try: open: killed by signal 9 (SIGKILL)"),
        ("refuse", "open", "refused", "batch 2: try: open: scripted refusal"),
        ("hang", "wait", "timeout", "batch 2: try: block took longer than its deadline of "),
        ("oom", "run", "oom", "batch 2, without a limit: oom: try: block: MemoryError: scripted: 8 GiB wanted"),
    ],
)
def test_one_contenders_failure_leaves_the_others_search(
    stage: Stage, fault: str, at: str, status: str, reason: str
) -> None:
    script = {"fake": {"fault": fault, "at": at}, "other": {"most_images": 5}}
    bad, good = stage.run("fake", "other", script=script, deadline=plans.deadline(fault), batch_size=5)
    assert bad["status"] == status
    assert bad["reason"].startswith(reason)
    assert (bad["largest_batch"], bad["smallest_memory_bytes"], bad["stopped_by"]) == (None, None, status)
    assert len(bad["tries"]) == 1
    assert (good["status"], good["largest_batch"]) == ("ok", 5)
    assert good["smallest_memory_bytes"] is not None


@pytest.mark.usefixtures("roughly")
def test_a_crash_under_a_cpus_limit_is_a_batch_that_does_not_fit(stage: Stage) -> None:
    (found,) = stage.run(script={"fake": {"base_bytes": BASE, "image_bytes": MEBIBYTE, "when_full": "kill"}}, memory=80)
    assert (found["status"], found["largest_batch"], found["stopped_by"]) == ("ok", 16, "memory")
    failed = next(each for each in found["tries"] if each["batch_size"] == 17)
    assert failed["reason"] == "crash: try: block: killed by signal 9 (SIGKILL)"


@pytest.mark.usefixtures("roughly")
def test_a_hang_under_a_cpus_limit_is_a_timeout(stage: Stage) -> None:
    script = {"fake": {"base_bytes": BASE, "image_bytes": MEBIBYTE, "when_full": "hang"}}
    (found,) = stage.run(script=script, memory=80, deadline=plans.deadline("hang"))
    assert (found["status"], found["largest_batch"]) == ("timeout", 16)
    assert not found["largest_batch_exact"]


def test_a_batch_that_trained_without_a_limit_only_is_not_the_largest(stage: Stage) -> None:
    script = {"fake": {"base_bytes": BASE, "image_bytes": MEBIBYTE, "when_full": "refuse"}}
    (found,) = stage.run(script=script, memory=80, batch_size=32)
    assert (found["status"], found["largest_batch"]) == ("refused", None)
    assert [(each["batch_size"], each["fitted"]) for each in found["tries"]] == [(2, True), (32, False)]


@pytest.mark.usefixtures("gpu", "roughly")
def test_a_crash_on_a_gpu_ends_the_contender_and_keeps_what_had_trained(stage: Stage) -> None:
    script = {"fake": {"most_images": 9, "when_full": "kill"}, "other": {"most_images": 9}}
    bad, good = stage.run("fake", "other", script=script, device="cuda", memory=None)
    assert (bad["status"], bad["reason"]) == ("crash", "batch 16: try: block: killed by signal 9 (SIGKILL)")
    assert (bad["largest_batch"], bad["largest_batch_exact"], bad["stopped_by"]) == (8, False, "crash")
    assert (good["status"], good["largest_batch"], good["stopped_by"]) == ("ok", 9, "memory")
    limits = [each["memory_limit_bytes"] for each in good["tries"]]
    assert limits[0] == max(limits) == 80 * 2**30  # a GPU's tries all have a limit


def test_what_does_not_fit_at_all_is_said(stage: Stage) -> None:
    script = {"fake": {"base_bytes": BASE, "image_bytes": MEBIBYTE, "most_images": 63}}
    (found,) = stage.run(script=script, memory=20, batch_size=64)
    assert (found["status"], found["largest_batch"], found["smallest_memory_bytes"]) == ("oom", None, None)
    assert found["reason"].startswith("batch 2 does not fit in 20 MiB; batch 64 does not fit in ")


@pytest.mark.usefixtures("roughly")
def test_the_search_ends_at_the_hosts_cap(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "MOST_BYTES", 100 * 8 * 8 * 4)
    (found,) = stage.run(script={"fake": {}})
    assert (found["largest_batch"], found["largest_batch_exact"], found["stopped_by"]) == (100, False, "cap")
    assert [each["batch_size"] for each in found["tries"][1:6]] == [8, 16, 32, 64, 100]
    with pytest.raises(Refused, match="--batch-size 101 is not allowed; allowed: 2 to 100"):
        stage.make(batch_size=101)


@pytest.mark.usefixtures("gpu")
def test_the_gpu_is_the_first_visible_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, gibibytes in ((None, 80), ("1,0", 140), ("GPU-22", 140), (" 0", 80)):
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        task = stage.make(device="cuda", memory=None)
        assert task.device_bytes == task.limit_bytes == task.most_bytes == gibibytes * 2**30
    for visible, said in (
        ("2", "MIG"),
        ("3", "does not tell"),
        ("", "''"),
        ("-1", "'-1'"),
        ("GPU-9", "'GPU-9'"),
        ("G", "an index or"),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(Refused, match=said):
            stage.make(device="cuda")


@pytest.mark.usefixtures("gpu")
def test_the_limit_reaches_the_child_as_bytes_and_as_a_fraction(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    added = variables.make_child_environment

    def spied(*arguments: Any, **named: Any) -> dict[str, str]:
        given.append(arguments[-1])
        return added(*arguments, **named)

    monkeypatch.setattr(variables, "make_child_environment", spied)
    script = {"fake": {"base_bytes": 2**30, "image_bytes": MEBIBYTE, "most_images": 9}}
    (found,) = stage.run(script=script, device="cuda", memory=8 * 1024)
    assert given == [each["memory_limit_bytes"] / (80 * 2**30) for each in found["tries"]]
    assert given[0] == 0.1
    needed = 2**30 + 8 * MEBIBYTE
    assert needed <= found["smallest_memory_bytes"] <= needed * 1.02


def test_only_linux_limits_a_process(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting.sys, "platform", "darwin")
    with pytest.raises(Refused, match="only Linux limits the memory of a process"):
        stage.make()


def test_a_long_reason_is_cut_after_a_word_and_says_so() -> None:
    file = Path(__file__).resolve().parents[2] / "benchmarks" / "h200" / "fit-torch" / "fit.json"
    result = json.loads(file.read_text())
    for attempt in result["contenders"][0]["tries"]:
        attempt["reason"] = "oom: you tried to allocate 20578304 bytes. " * 10
    stream = io.StringIO()
    report.render(typed_json.read(fit_result.Fit, result), Console(file=stream, width=1000))
    told = [line.rstrip() for line in stream.getvalue().splitlines() if "you tried" in line]
    assert told
    assert all(line.endswith("bytes. oom: you tried to allocate ...") for line in told), told


@pytest.mark.parametrize(
    ("stopped", "told"),
    [
        ("memory", "1,234 memory: 1,240 does not fit"),
        ("cap", "at least 1,234 8 GiB of images on the host"),
        ("timeout", "at least 1,234 timeout"),
    ],
)
def test_a_largest_batch_that_memory_did_not_end_is_a_bound(stopped: str, told: str) -> None:
    file = Path(__file__).resolve().parents[2] / "benchmarks" / "h200" / "fit-torch" / "fit.json"
    result = json.loads(file.read_text())
    result["contenders"][0] |= {"largest_batch": 1234, "smallest_failed_batch": 1240, "stopped_by": stopped}
    stream = io.StringIO()
    report.render(typed_json.read(fit_result.Fit, result), Console(file=stream, width=1000))
    assert told in " ".join(stream.getvalue().split())
