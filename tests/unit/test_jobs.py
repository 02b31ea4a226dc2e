"""Children that carry out jobs side by side: each at its own pace, on its own part of the cores."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compare import pair
from compare.execution import certificate_cases
from compare.execution.certificate_cases import Case
from compare.execution.child import Child
from compare.execution.jobs import Queue
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun
from compare.machine import memory, variables
from compare.settings import contenders
from compare.store import private_folder
from tests.fakebackend import plans
from tests.unit.scripted_children import Scripted, Scripting, execute, make_job, queue
from tests.unit.scripted_children import started as started


@dataclass(frozen=True)
class Opening(Scripting):
    """A command with a spec. Only its number of devices counts."""

    spec: Any


def test_none_waits_for_another(started: Launcher) -> None:
    answers: list[str] = []
    long, short = make_job(answers, ("long", 9)), make_job(answers, ("one", 1), ("two", 1), ("three", 1))
    execute(started, queue("fake", long), queue("other", short))
    assert answers == ["one", "two", "three", "long"]
    assert Scripted.said[:3] == ["fake begins long", "other begins one", "other ends one"]


def test_children_take_the_next_job_when_theirs_is_done(started: Launcher) -> None:
    answers: list[str] = []
    found = [make_job(answers, ("long", 9)), *(make_job(answers, (f"{n}a", 0), (f"{n}b", 1)) for n in range(3))]
    progress = execute(started, queue("fake", *found))
    assert answers == ["0a", "0b", "1a", "1b", "2a", "2b", "long"]
    assert len(Scripted.environments) == 2
    assert (progress[0], progress[-1], progress) == ((0, 4), (4, 4), sorted(set(progress)))


def test_a_child_is_started_for_the_devices_of_its_first_session(
    started: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, start = list[int | None](), Launcher.start

    def noted(self: Launcher, outcome: ContenderRun, *, devices: int | None, **rest: Any) -> Child:
        told.append(devices)
        return start(self, outcome, devices=devices, **rest)

    monkeypatch.setattr(Launcher, "start", noted)
    of_one, of_two, of_none = (make_job([], ("one", 1)) for _ in range(3))
    for job, devices in ((of_one, 1), (of_two, 2)):
        spec = SimpleNamespace(devices=devices)
        job.calls[0] = replace(job.calls[0], command=Opening("one", 1, spec))
    for job in (of_one, of_two, of_none):
        execute(started, queue("fake", job))
    assert told == [1, 2, None]


@pytest.mark.parametrize(("jobs", "most", "children"), [(9, None, 2), (9, 1, 1), (1, None, 1)])
def test_one_child_more_than_cores_no_more_than_jobs_nor_than_memory_holds(
    started: Launcher, jobs: int, most: int | None, children: int
) -> None:
    answers: list[str] = []
    execute(started, replace(queue("fake", *(make_job(answers, ("one", 1)) for _ in range(jobs))), most=most))
    assert (len(answers), len(Scripted.environments)) == (jobs, children)


def test_a_child_that_ends_makes_room_for_another_contenders(started: Launcher) -> None:
    answers: list[str] = []
    many = queue("fake", *(make_job(answers, (f"fake {n}", 9)) for n in range(3)))
    execute(started, many, queue("other", make_job(answers, ("other", 1))))
    assert answers == ["other", "fake 0", "fake 1", "fake 2"]
    assert Scripted.said.index("other is closed") < Scripted.said.index("fake begins fake 1")
    assert len(Scripted.environments) == 3


def test_what_memory_does_not_hold_is_not_started_where_others_leave_room(
    started: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: 8)
    answers: list[str] = []
    large = replace(queue("fake", *(make_job(answers, (f"fake {n}", 1)) for n in range(3))), most=1)
    execute(started, large, queue("other", *(make_job(answers, ("other", 1)) for _ in range(3))))
    begun = [line for line in Scripted.said if line.startswith("fake")]
    assert begun[:2] == ["fake begins fake 0", "fake ends fake 0"]
    assert len(Scripted.environments) == 4


def test_a_failure_ends_its_contenders_work_and_no_others(started: Launcher) -> None:
    answers: list[str] = []
    failing = queue("fake", make_job(answers, ("broken", 0), ("never", 0)), make_job(answers, ("nor this", 2)))
    other = queue("other", make_job(answers, ("one", 3), ("two", 0)))
    execute(started, failing, other)
    assert (failing.run.status, other.run.status, answers) == ("crash", "ok", ["one", "two"])
    assert failing.run.reason == "training: scripted"
    assert Scripted.said[-1] == "other is closed"
    assert "fake is closed" in Scripted.said


def test_a_job_that_lacks_memory_is_done_again_by_fewer_children_in_the_end_by_one(
    started: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: 4)
    answers: list[str] = []
    large = make_job(answers, ("before", 0), ("large", 1), ("after", 0))
    most = queue("fake", large, *(make_job(answers, (f"fake {n}", 2)) for n in range(4)))
    progress = execute(started, most, queue("other", *(make_job(answers, (f"other {n}", 3)) for n in range(4))))
    assert sorted({*answers}) == sorted(
        ["before", "large", "after", *(f"{name} {n}" for name in ("fake", "other") for n in range(4))]
    )
    assert most.run.status == "ok"
    begun = Scripted.said.count("fake begins large")
    assert 3 <= begun <= 4  # beside four others, beside one or two, and alone
    assert progress == sorted(progress)


def test_a_job_that_lacks_memory_alone_ends_its_contender_and_no_other(started: Launcher) -> None:
    answers: list[str] = []
    failing = queue("fake", make_job(answers, ("endless", 0)), make_job(answers, ("never", 0)))
    other = queue("other", make_job(answers, ("one", 2)), make_job(answers, ("two", 0)))
    execute(started, failing, other)
    assert (failing.run.status, failing.run.reason) == ("oom", "training: scripted")
    assert (other.run.status, answers) == ("ok", ["one", "two"])


@pytest.mark.parametrize("how", ["crash", "refused"])
def test_what_fails_beside_others_on_a_gpu_is_done_again_alone_behind_its_contenders_other_jobs(
    started: Launcher, how: str
) -> None:
    answers: list[str] = []

    def both() -> list[Queue]:
        answers.clear()
        crowded = queue(
            "fake", make_job(answers, ("before", 0), (how, 1), ("after", 0)), make_job(answers, ("next", 50))
        )
        return [crowded, queue("other", *(make_job(answers, (f"other {n}", 3)) for n in range(5)))]

    crowded, other = both()
    execute(started, crowded, other)
    assert (crowded.run.status, crowded.run.reason) == (how, "training: scripted")  # of a CPU each has its part
    started.plan = replace(started.plan, device="cuda")
    Scripted.said.clear()
    crowded, other = both()
    progress = execute(started, crowded, other)
    assert (crowded.run.status, other.run.status, other.run.reason) == ("ok", "ok", None)
    assert crowded.run.reason == f"repeated alone what had failed beside others ({how}, training: scripted)"
    assert answers[-3:] == ["before", how, "after"]  # of the job's second start
    first, again = Scripted.said.index("fake ends next"), Scripted.said.index("fake ends after")
    assert "fake is closed" in Scripted.said[first:again]  # in a child that has done nothing before
    assert sorted(answers[:-3]) == ["before", "next", *(f"other {n}" for n in range(5))]
    assert Scripted.said.count(f"fake begins {how}") == 2
    assert progress == sorted(progress)


def test_nothing_begins_beside_what_is_to_be_alone(started: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: 4)
    answers: list[str] = []
    alone = replace(make_job(answers, ("alone", 9)), alone=True)
    execute(started, queue("fake", make_job(answers, ("one", 2)), alone), queue("other", make_job(answers, ("two", 5))))
    execute(started, queue("fake", alone), queue("other", make_job(answers, ("three", 0))))
    assert answers == ["one", "two", "alone", "alone", "three"]


@pytest.mark.parametrize(("device", "cores", "waits"), [("cpu", 4, True), ("cuda", 1, True), ("cuda", 4, False)])
def test_what_is_to_be_alone_waits_for_imports_that_could_disturb_it(
    started: Launcher, monkeypatch: pytest.MonkeyPatch, device: str, cores: int, waits: bool
) -> None:
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: cores)
    started.plan, Scripted.imports = replace(started.plan, device=device), {"fake": 50}
    answers: list[str] = []
    alone = replace(make_job(answers, ("alone", 3)), alone=True)
    execute(started, queue("fake", make_job(answers, ("one", 1))), queue("other", alone))
    assert answers == ["alone", "one"]
    imported, begun = (Scripted.said.index(line) for line in ("fake has imported", "other begins alone"))
    assert (imported < begun) is waits


@pytest.mark.parametrize(("size", "beside"), [(45, 2), (46, 1), (99, 1), (0, 4)])
def test_what_is_known_to_take_much_of_a_gpu_leaves_room_there_for_others(
    started: Launcher, monkeypatch: pytest.MonkeyPatch, size: int, beside: int
) -> None:
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: 9)
    monkeypatch.setattr(memory, "read_device_bytes", lambda device: 100)
    answers: list[str] = []
    large = [replace(make_job(answers, (f"large {n}", 5)), memory=size) for n in range(4)]
    execute(started, queue("fake", *large), queue("other", *(make_job(answers, (f"other {n}", 2)) for n in range(4))))
    assert sorted(answers) == sorted(f"{name} {n}" for name in ("large", "other") for n in range(4))
    events = [line.split()[1] for line in Scripted.said if " large " in line]
    open_at_once = [events[:end].count("begins") - events[:end].count("ends") for end in range(len(events) + 1)]
    assert max(open_at_once) == beside
    assert Scripted.said.index("other begins other 0") < Scripted.said.index("fake ends large 0")


@pytest.mark.parametrize(("jobs", "tries"), [(1, 2), (3, 4), (4, 4), (9, 4)])
def test_what_fails_on_a_gpu_alone_has_failed_and_so_has_who_fails_often(
    started: Launcher, jobs: int, tries: int
) -> None:
    started.plan = replace(started.plan, device="cuda")
    failing = queue("fake", *(make_job([], ("broken", 0)) for _ in range(jobs)))
    other = queue("other", make_job([], ("one", 50)))
    execute(started, failing, other)
    assert (failing.run.status, failing.run.reason) == ("crash", "training: scripted")
    assert (other.run.status, other.run.reason) == ("ok", None)
    assert Scripted.said.count("fake begins broken") == tries


def test_a_job_that_spares_its_contender_marks_it_when_all_others_are_done(started: Launcher) -> None:
    answers: list[str] = []
    broken, never = (replace(make_job(answers, (name, 0)), spares=True) for name in ("broken", "never"))
    failing = queue("fake", broken, make_job(answers, ("one", 3)), never)
    execute(started, failing)
    assert (answers, failing.run.status, failing.run.reason) == (["one"], "crash", "training: scripted")


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "4")])
def test_children_side_by_side_share_the_cores(
    started: Launcher, monkeypatch: pytest.MonkeyPatch, cores: int, threads: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: cores)
    execute(started, *(queue(name, make_job([], ("one", 0))) for name in ("fake", "other")))
    assert [each["OMP_NUM_THREADS"] for each in Scripted.environments] == [threads, threads]
    started.start(ContenderRun(contenders.parse(["fake", "other"])[0]), purpose="training")
    assert "OMP_NUM_THREADS" not in Scripted.environments[-1]  # timed alone, with every core
    assert variables.make_thread_environment(4, {"OMP_NUM_THREADS": "3"}) == {"OMP_NUM_THREADS": "3"}


def test_what_runs_once_to_match_a_pair_is_not_optimised_and_nothing_else(started: Launcher) -> None:
    outcomes = [ContenderRun(each) for each in contenders.parse(["torch", "jax"])]
    for purpose in ("matching", "certificate", "trajectory", "training"):
        for outcome in outcomes:
            started.start(outcome, purpose=purpose)
    found = ["JAX_DISABLE_MOST_OPTIMIZATIONS" in each for each in Scripted.environments]
    assert found == [False, True, *[False] * 6]


def test_variables_that_decide_the_program_are_kept_as_they_were_set_and_no_folders(
    started: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false")
    started.plan = replace(started.plan, device="cuda", deterministic=True)
    jax, torch = (ContenderRun(each) for each in contenders.parse(["jax:tuned", "torch"]))
    for purpose in ("matching", "certificate", "round"):
        for outcome in (jax, torch):
            started.start(outcome, purpose=purpose, beside=1)
    assert jax.variables == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "JAX_PLATFORMS": "cuda",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_FLAGS": "--xla_gpu_enable_command_buffer=+CONVOLUTION,+WHILE "
        "--xla_gpu_command_buffer_scheduling_mode=CONCURRENT --xla_gpu_deterministic_ops=true "
        "--xla_gpu_enable_triton_gemm=false",
    }
    assert torch.variables == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    for given in Scripted.environments[::2]:
        assert given == given | jax.variables


@pytest.mark.parametrize(
    ("size", "resizable", "other"), [(32, True, 33), (33, True, 32), (1, True, 2), (32, False, None)]
)
def test_a_pair_is_certified_at_the_size_asked_for_and_at_its_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, resizable: bool, other: int | None
) -> None:
    plans.register(monkeypatch, tmp_path)
    workload = pair("a:b", "c:d", image=(size, size, 3), classes=4)
    made = plans.make(tmp_path / "out", ("fake", "other"), workload=workload, accumulate=2, batch_size=32)
    plan = replace(made, resizable=resizable)
    assert certificate_cases.make_adversarial_cases(plan) == (certificate_cases.make_native_case(plan), Case(6, other))


def test_a_job_that_may_not_begin_waits_and_so_do_those_behind_it(started: Launcher) -> None:
    answers: list[str] = []
    held = replace(make_job(answers, ("held", 0)), may_begin=lambda: "long" in answers)
    execute(
        started,
        queue("fake", make_job(answers, ("one", 0)), held, make_job(answers, ("behind", 0))),
        queue("other", make_job(answers, ("long", 9))),
    )
    assert answers == ["one", "long", "held", "behind"]


def test_what_may_begin_when_no_child_is_left_is_waited_for(started: Launcher) -> None:
    answers: list[str] = []
    looks = iter([False] * 9)
    held = replace(make_job(answers, ("held", 0)), may_begin=lambda: next(looks, True))
    execute(started, queue("fake", held))
    assert answers == ["held"]


def test_children_find_the_programs_of_what_their_queue_is_for(started: Launcher) -> None:
    training = replace(queue("other", make_job([], ("short", 1))), purpose="training")
    execute(started, queue("fake", make_job([], ("short", 1))), training)
    folders = [Path(each["TORCHINDUCTOR_CACHE_DIR"]) for each in Scripted.environments]
    assert folders == [
        private_folder.find_programs(started.scratch) / "torch",
        started.scratch / "cache-other" / "torch",
    ]


def test_what_is_to_be_alone_begins_before_others_and_its_child_goes_on_beside_them(
    started: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: 4)
    answers: list[str] = []
    alone = replace(make_job(answers, ("alone", 3)), alone=True)
    execute(
        started,
        queue("fake", *(make_job(answers, (f"fake {n}", 5)) for n in range(3))),
        replace(queue("other", alone, make_job(answers, ("after it", 5))), most=1),
    )
    assert Scripted.said[:2] == ["other begins alone", "other ends alone"]
    begun = Scripted.said.index("other begins after it")
    assert "other is closed" not in Scripted.said[:begun]
    assert Scripted.said.index("fake begins fake 0") < Scripted.said.index("other ends after it")
