"""Whole runs with the fake backends: what contenders do side by side where nothing is timed."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compare.base.commands import Command, ModelInfo
from compare.data import dataset_file
from compare.execution import certificate_cases, ready_children, record_certificates
from compare.execution.child import Child
from compare.execution.launcher import BESIDE_OTHERS, Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.machine import cpu, memory
from compare.report import measurements
from compare.settings import contenders
from tests.fakebackend import plans
from tests.unit.result_factory import typed
from tests.unit.stage import Stage, exit_code

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def _spied(monkeypatch: pytest.MonkeyPatch, kind: type, *methods: str) -> list[tuple[str, Any]]:
    """Return a list of calls to the methods: the method's name, and its first argument or the command's name."""
    calls = list[tuple[str, Any]]()

    def spy(method: str) -> None:
        original = getattr(kind, method)

        def note_call(self: Any, *arguments: Any, **named: Any) -> Any:
            calls.append((method, getattr(arguments[0], "name", arguments[0]) if arguments else None))
            return original(self, *arguments, **named)

        monkeypatch.setattr(kind, method, note_call)

    for method in methods:
        spy(method)
    return calls


def test_contenders_that_work_in_turn_start_side_by_side(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _spied(monkeypatch, Child, "__init__", "greet", "send")
    stage.run("fake", "other", "third", agreement=False, cold_compile=True)
    events = [method for method, _ in calls]
    side_by_side = ["__init__"] * 3 + ["greet"] * 3 + ["send"]
    assert events[:7] == side_by_side  # first steps
    memory = events.index("__init__", 7)
    assert events[memory : memory + 7] == side_by_side
    assert "greet" not in events[7:memory]


@pytest.mark.parametrize("ahead", [0, 9])
def test_no_phase_starts_more_processes_than_it_needs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ahead: int
) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: ahead)
    monkeypatch.setattr(cpu, "count_usable_cores", lambda: 16)
    stage.cache, starts, start = tmp_path / "cache", list[tuple[str, str]](), Launcher.start

    def count(launcher: Launcher, run: ContenderRun, *, purpose: str, **more: Any) -> Child:
        starts.append((purpose, run.contender.name))
        return start(launcher, run, purpose=purpose, **more)

    monkeypatch.setattr(Launcher, "start", count)
    # Training and memory need a process each. Nothing is certified a second time.
    needed = {"training": 2, "certificate": 1, "round": 3}
    for purposes in (needed, {**needed, "certificate": 0}):
        before = len(plans.started(tmp_path))
        stage.run("fake", "other", rounds=3)
        assert Counter(starts) == Counter({(p, name): n for p, n in purposes.items() for name in ("fake", "other")})
        assert len(plans.started(tmp_path)) - before == len(starts)  # none was started ahead and then not used
        starts.clear()


@pytest.mark.parametrize("beside", [True, False])
def test_contenders_that_take_turns_start_side_by_side_on_a_gpu(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", beside)
    calls = _spied(monkeypatch, Child, "__init__", "send", "close")
    result = stage.run("fake", "other", "third", agreement=False, design="turns")
    events = [argument if method == "send" else method for method, argument in calls]
    # Every process of a round starts before the first one opens. Otherwise each starts after the one before is closed.
    opened = [index for index, event in enumerate(events) if event == "open"][-6:]
    between = events[opened[0] : opened[2]]
    assert ("__init__" not in between) == beside
    assert "close" in between
    assert [len(each["step_seconds"]["samples"]) for each in result["contenders"]] == [2, 2, 2]


def test_a_contender_that_does_not_start_leaves_the_others_their_turns(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    fault = {"fault": "raise", "at": "start", "process": 3}
    result = stage.run("fake", "other", script={"other": fault}, agreement=False, design="turns", rounds=3)
    assert [each["status"] for each in result["contenders"]] == ["ok", "crash"]
    assert "timed rounds: starting" in result["contenders"][1]["reason"]
    assert [len(each["step_seconds"]["samples"]) for each in result["contenders"][:1]] == [3]


@pytest.mark.parametrize("agreement", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_training_beside_others_finds_what_training_alone_finds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, agreement: bool
) -> None:
    alone = stage.run("fake", "other", agreement=agreement, cold_compile=True)
    evaluated = len(stage.calls("logits"))
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    beside = stage.run("fake", "other", agreement=agreement)
    assert [each["training"] for each in beside["contenders"]] == [each["training"] for each in alone["contenders"]]
    assert beside["agreement"] == alone["agreement"]
    assert stage.progress[-1] == ("timed rounds", 2, 2)
    assert [each["memory"]["live_peak_bytes"] for each in beside["contenders"]] == [1 << 20] * 2
    assert all(each["memory"]["process_bytes"] > 0 for each in beside["contenders"])
    assert len(stage.calls("logits")) == 2 * evaluated  # each contender trains once
    for _, _, pid, _ in stage.calls("memory")[2:]:
        places = [place for *_, whose, place in stage.log if whose == pid]
        assert places[:5] == ["start", "open", "assign", "feed", "run"]


def test_contenders_compile_side_by_side_where_nobody_asks_what_that_takes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = stage.run("fake", "other", "third", agreement=False, cold_compile=True)
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    monkeypatch.setattr("compare.settings.tunings.keeps_search", lambda backend, *_: backend == "other")
    events, threads, begin, send = list[str](), list[str | None](), Child.__init__, Child.send

    def begun(child: Child, name: str, package: str, environment: dict[str, str], *rest: Any) -> None:
        threads.append(environment.get("OMP_NUM_THREADS"))
        begin(child, name, package, environment, *rest)

    def sent(child: Child, command: Command[Any]) -> None:
        events.append(child.name)
        send(child, command)

    monkeypatch.setattr(Child, "__init__", begun)
    monkeypatch.setattr(Child, "send", sent)
    shared = stage.run("fake", "other", "third", agreement=False)
    assert events[:4] == ["other"] * 4  # first steps that keep the kernels of a search come first, and alone
    assert threads[:3] == [None] * 3  # what these tell of their threads is to be what is timed
    assert [each["training"] for each in shared["contenders"]] == [each["training"] for each in cold["contenders"]]
    assert (cold["spec"]["cold_compile_requested"], shared["spec"]["cold_compile_requested"]) == (True, False)
    for figure in ("compile_seconds", "first_step_seconds", "warmup_seconds", "steady"):
        assert all(each[figure] is not None for each in cold["contenders"])
        assert [each[figure] is None for each in shared["contenders"]] == [True, False, True]
    assert [each.get("compile_reason") is None for each in shared["contenders"]] == [False, True, False]
    assert all(each["cached_compile_seconds"] is not None for each in shared["contenders"])
    alone = [each for each in typed(shared).contenders if each.compile_seconds is None]
    labels = [measurements.make_rows(each, 0.95)[0][0] for each in (typed(cold).contenders, alone) if each]
    assert labels == ["compile (s)", "compile, from cache (s)"]


@pytest.mark.parametrize("anew", [True, False])
def test_what_keeps_its_kernels_compiles_in_every_round_where_a_search_is_to_count(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    monkeypatch.setattr("compare.settings.tunings.keeps_search", lambda backend, *_: backend == "other")
    caches, events, kept = dict[str, list[str]](), list[str](), list[int]()
    begin, send = Child.__init__, Child.send

    def begun(child: Child, name: str, package: str, environment: dict[str, str], *rest: Any) -> None:
        caches.setdefault(name, []).append(environment["TORCHINDUCTOR_CACHE_DIR"])
        folder = Path(environment["TORCHINDUCTOR_CACHE_DIR"]).parent
        folder.mkdir(parents=True, exist_ok=True)
        kept.append(len([*folder.parent.glob("cache-*-other")]))
        begin(child, name, package, environment, *rest)

    def sent(child: Child, command: Command[Any]) -> None:
        events.append(f"{child.name} {command.name}")
        send(child, command)

    monkeypatch.setattr(Child, "__init__", begun)
    monkeypatch.setattr(Child, "send", sent)
    result = stage.run("fake", "other", "third", agreement=False, search_anew=anew, rounds=3)
    rounds = {name: folders[-3:] for name, folders in caches.items()}
    assert [len({*rounds[name]}) for name in ("fake", "other", "third")] == [1, 3 if anew else 1, 1]
    assert (rounds["other"][0] in caches["other"][:-3]) != anew  # where it was trained
    assert max(kept) == anew  # a round's is gone when the next begins
    # In later rounds two may load side by side, and then begin with a block. A process that compiles never does.
    last = [each for each in events[len(events) - events[::-1].index("other open") :] if each.startswith("other")]
    assert last[:2] == (["other warm_up", "other block"] if anew else ["other block", "other warm_up"])
    assert [each["cached_compile_seconds"] is None for each in result["contenders"]] == [False, anew, False]


@pytest.mark.parametrize(("gigabytes", "most"), [(2, 1), (3, 2), (6, 5)])
def test_as_many_record_as_a_gpu_has_memory_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, gigabytes: int, most: int
) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    monkeypatch.setattr(memory, "read_device_bytes", lambda device: gigabytes << 30)
    alive, peak, begin, close = set[int](), [0], Child.__init__, Child.close

    def begun(child: Child, *arguments: Any) -> None:
        begin(child, *arguments)
        alive.add(id(child))
        peak[0] = max(peak[0], len(alive))

    def closed(child: Child) -> None:
        alive.discard(id(child))
        close(child)

    monkeypatch.setattr(
        record_certificates, "_MOST_BYTES", 0
    )  # what a session holds is nothing here: contexts alone count
    plans.register(monkeypatch, stage.folder, children=3)
    plan = plans.make(stage.folder / "out", ("fake", "other"))
    launcher = Launcher(plan, stage.folder)
    dataset_file.save(plan.dataset, launcher.dataset)
    outcomes = RunState(plan, [ContenderRun(contender) for contender in plan.contenders])
    monkeypatch.setattr(Child, "__init__", begun)
    monkeypatch.setattr(Child, "close", closed)
    record_certificates.certify(launcher, outcomes, (certificate_cases.make_native_case(plan),), lambda *_: None)
    assert peak[0] == most
    assert [made.status for made in outcomes.certificates.values()] == ["pass"]


@pytest.mark.parametrize(
    ("precision", "parameters", "held", "expected"),
    [
        ("float64", 2**27, 11, 7.0),
        ("float32", 2**27, 11, 6.0),  # at most what is taken for activations
        ("float64", 2**20, 30, 6.0),
        ("float64", 2**20, 0.5, 1 + 6 / 128),
        ("bfloat16", 0, 0, 1.0),
    ],
)
def test_what_a_record_takes_of_a_gpu_goes_by_its_model_and_what_its_session_held(
    precision: str, parameters: int, held: float, expected: float
) -> None:
    outcome = ContenderRun(contenders.parse(["torch"], 1)[0], model=ModelInfo("", parameters, 1))
    outcome.held_bytes = int(held * 2**30)
    launcher = cast(Launcher, SimpleNamespace(plan=SimpleNamespace(device="cpu")))
    assert record_certificates._estimate_memory(launcher, outcome, precision) / 2**30 == pytest.approx(expected)


def test_the_memory_of_one_that_searches_for_kernels_anew_is_measured_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    monkeypatch.setattr("compare.settings.tunings.searches_anew", lambda backend, _: backend == "other")
    working, beside, others = set[int](), list[set[int]](), list[str]()
    send, reply = Child.send, Child.reply

    def sending(child: Child, command: Command[Any]) -> None:
        if (child.name, command.name) == ("other", "memory"):
            beside.append(set(working))
        elif beside and working == {measured[0]}:
            others.append(command.name)
        if (child.name, command.name) == ("other", "idle_memory"):
            measured.append(child.pid)
        working.add(child.pid)
        send(child, command)

    def replying(child: Child, command: Command[Any], seconds: float | None = None) -> Any:
        value = reply(child, command, seconds)
        working.discard(child.pid)
        return value

    measured = list[int]()
    monkeypatch.setattr(Child, "send", sending)
    monkeypatch.setattr(Child, "reply", replying)
    result = stage.run("fake", "other", cold_compile=False)
    assert [each["memory"]["live_peak_bytes"] for each in result["contenders"]] == [1 << 20] * 2
    assert not [doing for doing, *_ in stage.progress if doing.startswith("usage")]
    assert beside == [set()], "no other child works when the search begins"
    assert not others, "and none begins before it ends"


def test_a_failure_in_training_beside_others_is_its_contenders_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    # A record evaluates one batch, training all of them.
    result = stage.run(script={"other": {"fault": "raise", "at": "logits", "visit": 9}})
    good, bad = result["contenders"]
    assert (good["status"], bad["status"], bad["training"]) == ("ok", "crash", None)
    assert bad["reason"] == "training: train: RuntimeError: scripted failure"
    assert len(good["step_seconds"]["samples"]) == 2
    assert exit_code(result) == 3


def test_a_failure_to_measure_memory_beside_others_is_its_contenders_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    result = stage.run(script={"other": {"fault": "raise", "at": "memory"}})
    good, bad = result["contenders"]
    assert (good["status"], bad["status"], bad["memory"]) == ("ok", "crash", None)
    assert bad["reason"] == "usage: memory: RuntimeError: scripted failure"
    assert good["memory"]["live_peak_bytes"] == 1 << 20


@pytest.mark.parametrize("searching", [(), ("fake",), ("fake", "third")])
def test_programs_are_loaded_side_by_side_after_the_first_round(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, searching: Sequence[str]
) -> None:
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    monkeypatch.setattr("compare.settings.tunings.searches_anew", lambda backend, _: backend in searching)
    names = ("fake", "other", "third")
    sent = _spied(monkeypatch, Child, "send")
    result = stage.run(
        *names, script={name: {"compile_seconds": 8.0, "step_seconds": 0.02} for name in names}, agreement=False
    )
    loaded = 3 - len(searching) if len(searching) < 2 else 0  # one that could, alone, gains nothing by it
    opened = [index for index, (_, command) in enumerate(sent) if command == "open"]
    then = [[command for _, command in sent[index + 1 : index + 4]] for index in opened[-6 + 2 :: 3]]
    assert then == [["warm_up"] * 3, ["block"] * loaded + ["warm_up"] * (3 - loaded)]
    for contender in result["contenders"]:
        assert [len(samples) for samples in contender["step_seconds"]["samples"]] == [6, 6]
        assert contender["step_seconds"]["median"] == pytest.approx(0.02)
        # Each process compiles in half the time of the last. Of those loaded side by side, the first round counts.
        beside = loaded > 0 and contender["name"] not in searching
        assert contender["cached_compile_seconds"] == pytest.approx(2.0 if beside else 1.5, rel=0.02)
