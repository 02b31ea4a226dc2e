"""Options and knobs of several devices: what is refused, and what a child is told."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compare.base import process_group
from compare.base.interface import Refused
from compare.base.interruptions import HeldSignals
from compare.base.process_group import FURTHER
from compare.execution import phases
from compare.execution.child import Child
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.execution.telemetry import Telemetry
from compare.machine import environment, variables
from compare.settings import contenders, plan, tunings
from compare.settings.block_order import list_gpus_of_round
from compare.settings.options import Settings
from tests.fakebackend import plans
from tests.unit import programs
from tests.unit.programs import Program

TWO = ("--devices", "2")
OWN = ("--jax", "a.py:model", "--torch", "b.py:model", "--input", "8x8x1", "--classes", "10")
REFUSALS = [
    (["torch", "jax", *TWO], "--devices 2: no contender says how it uses several; allowed: --parallel WAY"),
    (["torch", "jax", "--parallel", "mpi"], "--parallel mpi: unknown 'mpi'; allowed: pmap or sharded for jax"),
    (["torch", "jax", "--parallel", "pmap,sharded"], "--parallel pmap,sharded: a second for 'jax'"),
    (["torch:pmap", "jax"], "torch:pmap: torch has no way 'pmap'; allowed: ddp"),
    (["jax:pmap+sharded", "torch"], "jax:pmap+sharded gives 'parallel' twice"),
    (["jax:parallel=mpi", "torch"], "parallel=mpi is not allowed; allowed: none, pmap, sharded, ddp"),
    (["jax:compile=off+pmap", "torch"], "jax:compile=off+pmap: pmap needs compile in jax"),
    (["jax:stock+sharded+input=stream", "torch"], "sharded excludes input=stream; allowed: input=resident"),
    (["jax:compile+pieces+pmap", "torch"], "pieces excludes pmap"),
    (["jax:compiled+pmap+rematerialisation", "torch"], "pmap excludes rematerialisation on a CPU"),
    (["jax:compiled+pmap+overlap-reduction", "torch"], "overlap-reduction needs --device cuda in jax"),
    (["torch:overlap-reduction", "jax"], "torch:overlap-reduction: overlap-reduction needs ddp in torch"),
    (["torch:compile+stock", "jax"], "torch:compile+stock: stock is a tuning; allowed: one, before all knobs"),
    (["torch:tuned+compiled", "jax"], "compiled is a tuning; allowed: one, before all knobs"),
    (["jax:pmap=on", "torch", "--parallel", "ddp"], "jax:pmap=on: pmap takes no value; allowed: pmap alone"),
    (["jax:overlap-reduction", "torch"], "overlap-reduction needs --device cuda in jax"),
    (["torch:ddp+overlap-reduction=off", "jax"], "overlap-reduction=off needs compile in torch"),
    (["torch:compile+compiled-autograd", "jax"], "compiled-autograd needs ddp in torch"),
    (["torch:ddp+compiled-autograd", "jax"], "compiled-autograd needs compile in torch"),
    (["jax:overlap-exchanges", "torch"], "jax:overlap-exchanges: overlap-exchanges needs pmap or sharded"),
    (["torch:compile+overlap-exchanges", "jax"], "overlap-exchanges needs ddp in torch"),
    (["torch:fused-batch-norm", "jax"], "fused-batch-norm needs --device cuda"),
    (["torch:ddp+overlap-exchanges", "jax"], "overlap-exchanges needs compile in torch"),
    (["torch:ddp+graph-capture", "jax"], "graph-capture needs --device cuda"),
    (
        ["torch:ddp", "jax", "--devices", "3"],
        "64 with --devices 3 is not allowed; allowed: a multiple of 3",
    ),
    (["torch:ddp", "jax", "--devices", "65"], "--devices 65 is not allowed: 64 parts of this CPU can be used"),
    (["torch:ddp", "jax", "--devices", "0"], "--devices 0 is not allowed; allowed: a whole number from 1"),
    (["torch:ddp", "jax", "--accumulate", "2"], "--accumulate 2 with torch:ddp is not allowed; allowed: 1"),
    (["torch:ddp", "jax", "--batch-norm", "global"], "--batch-norm 'global' is not allowed; allowed: sync, local"),
    (
        ["torch:ddp", "jax", *TWO, "--batch-norm", "local"],
        "--batch-norm local: jax is one device, so its batch norm sees the whole batch, which is a different "
        "computation; allowed: --batch-norm sync, or only contenders with pmap or ddp",
    ),
    (["torch:ddp", "jax:sharded", *TWO, "--batch-norm", "local"], "jax:sharded is a program over the whole batch"),
    (["torch", "jax", "--batch-norm", "local"], "--batch-norm local: every contender trains on one device"),
    ([*OWN, *TWO], "--devices 2: no contender says how it uses several; allowed: --parallel WAY"),
    (
        ["torch:ddp", "jax:sharded", *OWN, *TWO],
        "jax:sharded: models of your own are not split by sharded; allowed: +pmap",
    ),
]


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


@pytest.mark.parametrize(("arguments", "said"), REFUSALS, ids=[" ".join(arguments) for arguments, _ in REFUSALS])
def test_what_several_devices_cannot_do_is_refused(
    program: Program, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: False)
    monkeypatch.setattr(environment, "is_installed", lambda package: True)
    code, out, error = program.run("compare", *arguments)
    assert (code, out) == (2, "")
    assert said in error


def test_no_more_devices_than_are_visible(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    monkeypatch.setattr(environment.nvml, "describe", lambda: {"gpus": [{}] * 4})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    code, _, error = program.run("compare", "torch:ddp", "jax:sharded", "--devices", "4", "--device", "cuda")
    assert code == 2
    assert "--devices 4 is not allowed: 2 GPUs are visible" in error
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert environment.count_visible_gpus() == 4


@pytest.mark.parametrize("hidden", ["", "-1", "4"])
def test_a_gpu_that_no_child_sees_is_not_used(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    monkeypatch.setattr(environment.nvml, "describe", lambda: {"gpus": [{}] * 4})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert plans.make(tmp_path, ("fake", "other"), device="auto").device == "cpu"
    code, _, error = program.run("compare", "fake", "other", "--device", "cuda")
    assert code == 2
    assert f"--device cuda: CUDA_VISIBLE_DEVICES={hidden!r} leaves none of this machine's GPUs; allowed" in error
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert plans.make(tmp_path, ("fake", "other"), device="auto").device == "cuda"


def test_parallel_is_for_contenders_that_name_no_way() -> None:
    given = ["torch", "jax:tuned", "jax:pmap", "torch:stock+parallel=none"]
    spread = ["torch:compiled+ddp", "jax:tuned+sharded", "jax:pmap", "torch:stock+parallel=none"]
    assert contenders.add_parallel(given, "ddp,sharded") == spread
    assert contenders.add_parallel(given, None) == given
    assert contenders.add_parallel(given, "pmap", "sharded,ddp")[:2] == ["torch:compiled+ddp", "jax:tuned+pmap"]
    assert contenders.add_parallel(given[2:], None, "sharded,ddp") == given[2:]


@pytest.mark.parametrize("given", [["torch", "torch:tuned"], ["torch", "jax:stock+pmap"]])
def test_a_way_that_no_contender_takes_is_refused(given: list[str]) -> None:
    with pytest.raises(Refused, match="--parallel ddp,sharded: no contender of jax takes sharded; allowed: with a"):
        contenders.add_parallel(given, "ddp,sharded")


@pytest.mark.parametrize(
    ("inherited", "devices", "seen"),
    [
        (None, range(1), "0"),
        (None, range(4), "0,1,2,3"),
        (None, range(2, 4), "2,3"),
        ("2,3,0", range(2), "2,3"),
        ("2,3,0", range(1, 3), "3,0"),
        ("GPU-3d32f937", range(1), "GPU-3d32f937"),
        ("3", range(2), "3"),
    ],
)
def test_a_contender_sees_the_gpus_that_it_trains_on_and_no_others(
    inherited: str | None, devices: range, seen: str
) -> None:
    given = {} if inherited is None else {"CUDA_VISIBLE_DEVICES": inherited}
    assert process_group.make_visible_environment(devices, given) == {"CUDA_VISIBLE_DEVICES": seen}


def test_children_see_the_gpus_of_their_contender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children = list[Mapping[str, str]]()

    def started(name: str, package: str, environment: Mapping[str, str], *_: Any) -> Any:
        children.append(environment)
        return SimpleNamespace(pid=0)

    monkeypatch.setattr("compare.execution.launcher.Child", started)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = plan.make(
        Settings(contenders=["torch:stock+ddp", "jax"], out=tmp_path, workload="cifar-cnn", devices=2, device="cpu")
    )
    for device in ("cuda", "cpu"):
        launcher = Launcher(replace(made, device=device), tmp_path)
        for contender in made.contenders:
            outcome = ContenderRun(contender)
            launcher.start(outcome, purpose="training")
            launcher.start(outcome, purpose="round", first_gpu=2)
            launcher.start(outcome, purpose="certificate", devices=1)
            assert "CUDA_VISIBLE_DEVICES" not in outcome.variables  # which GPU it is is no setting
    seen = [each.get("CUDA_VISIBLE_DEVICES") for each in children]
    assert seen == ["0,1", "2,3", "0,1", "0", "2", "0", *[None] * 6]
    begun = [json.loads(each.get(FURTHER, "null")) for each in children]
    assert begun == [
        *[{"local_world_size": 2, "device": "cuda"}] * 2,  # each of ddp's devices has a process
        *[None] * 4,
        *[{"local_world_size": 2, "device": "cpu"}] * 2,
        *[None] * 4,
    ]


def test_rounds_go_around_on_all_gpus_in_parts_that_are_whole() -> None:
    assert [list_gpus_of_round(number, 1, 3) for number in range(4)] == [range(1), range(1, 2), range(2, 3), range(1)]
    assert [list_gpus_of_round(number, 2, 4) for number in range(3)] == [range(2), range(2, 4), range(2)]
    assert [list_gpus_of_round(number, 2, 5) for number in range(3)] == [range(2), range(2, 4), range(2)]
    assert [list_gpus_of_round(number, 4, 4) for number in range(2)] == [range(4), range(4)]
    assert [list_gpus_of_round(number, count, 1) for number, count in ((0, 1), (1, 1), (1, 4))] == [None] * 3


@pytest.mark.parametrize("design", ["alternating", "turns"])
def test_the_children_of_a_round_begin_at_its_first_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, design: str
) -> None:
    first, start = list[tuple[str, int]](), Launcher.start

    def started(self: Launcher, outcome: ContenderRun, *, purpose: str, first_gpu: int = 0, **others: Any) -> Child:
        if purpose == "round":
            first.append((outcome.contender.backend, first_gpu))
        return start(self, outcome, purpose=purpose, first_gpu=first_gpu, **others)

    plans.register(monkeypatch, tmp_path)
    monkeypatch.setattr(Launcher, "start", started)
    monkeypatch.setattr("compare.execution.rounds.BESIDE_OTHERS", {"cpu": True})
    texts = ("fake:stock+ddp", "other:stock+ddp")
    made = plans.make(tmp_path / "out", texts, design=design, rounds=3, rotation=2, agreement=False)
    outcomes = phases.run_comparison(made, lambda *_: None, HeldSignals())
    turns = [(("fake", gpu), ("other", gpu)) for gpu in (0, 1)] + [(("other", 0), ("fake", 0))]
    assert first == [child for turn in turns for child in turn], "each comes first on each GPU"
    assert [each.gpus for each in outcomes.rounds] == [range(1), range(1, 2), range(1)]


@pytest.mark.parametrize(
    ("texts", "rotation", "most"),
    [(("fake:stock+ddp", "other"), 1, 2), (("fake", "other:stock+ddp"), 1, 2), (("fake:stock+ddp", "other"), 4, 4)],
)
def test_as_many_gpus_are_watched_as_any_contender_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: tuple[str, str], rotation: int, most: int
) -> None:
    watched = list[int]()

    @contextmanager
    def sampled(family: Any, now: Any, gpus: int) -> Generator[Telemetry]:
        watched.append(gpus)
        yield Telemetry()

    plans.register(monkeypatch, tmp_path)
    made = replace(plans.make(tmp_path / "out", texts, devices=2, batch_size=8), device="cuda", rotation=rotation)
    monkeypatch.setattr(phases.telemetry, "sample", sampled)
    monkeypatch.setattr(phases.rounds, "time_rounds", lambda *_: None)
    outcomes = RunState.begin(made)
    phases._time(Launcher(made, tmp_path), outcomes, lambda *_: None, HeldSignals())
    assert watched == [most]


def test_jax_sees_as_many_devices_of_a_cpu_as_its_contender_trains_on() -> None:
    added = variables.make_child_environment("jax", {}, "cpu", False, {}, devices=4)
    assert added["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    assert int(added["PJRT_NPROC"]) > 100
    assert "XLA_FLAGS" not in variables.make_child_environment("jax", {}, "cpu", False, {})
    assert "XLA_FLAGS" not in variables.make_child_environment("torch", {}, "cpu", False, {}, devices=4)


@pytest.mark.parametrize(("backend", "way"), [("torch", "ddp"), ("jax", "pmap"), ("jax", "sharded")])
def test_a_step_of_several_gpus_is_captured_as_one_of_a_gpu(backend: str, way: str) -> None:
    one, several = (tunings.resolve(backend, f"tuned{way}", "cuda", "cifar-cnn") for way in ("", f"+{way}"))
    assert several == one | {"parallel": way, "concurrent-kernels": False, "overlap-reduction": backend == "torch"}
    assert (one["graph-capture"], one["steps-per-dispatch"], one["concurrent-kernels"]) == (True, 24, True)
    asked = tunings.resolve(backend, f"tuned+{way}+concurrent-kernels", "cuda", "cifar-cnn")
    assert asked == several | {"concurrent-kernels": True}


@pytest.mark.parametrize(
    ("way", "devices", "machines", "captured"),
    [
        ("sharded", 2, 1, "+COLLECTIVES"),
        ("pmap", 8, 1, "+COLLECTIVES"),
        ("sharded", 1, 1, "+WHILE"),
        ("pmap+overlap-exchanges", 1, 1, "+WHILE"),
        ("sharded", 2, 2, "+WHILE"),
        ("none", 1, 1, "+WHILE"),
    ],
)
def test_xla_captures_exchanges_of_one_machine_and_loops_without_any(
    way: str, devices: int, machines: int, captured: str
) -> None:
    knobs = tunings.resolve("jax", f"tuned+parallel={way}+concurrent-kernels=off", "cuda", "cifar-cnn")
    added = variables.make_child_environment("jax", knobs, "cuda", False, {}, devices=devices, machines=machines)
    assert f"--xla_gpu_enable_command_buffer=+CONVOLUTION,{captured}" in added["XLA_FLAGS"].split()


@pytest.mark.parametrize(("devices", "machines"), [(2, 1), (1, 2)])
def test_a_step_in_which_something_is_to_run_beside_exchanges_is_not_captured(devices: int, machines: int) -> None:
    knobs = tunings.resolve("jax", "tuned+pmap+overlap-exchanges", "cuda", "resnet50")
    added = variables.make_child_environment("jax", knobs, "cuda", False, {}, devices=devices, machines=machines)
    assert "command_buffer" not in added.get("XLA_FLAGS", "")


@pytest.mark.parametrize(
    ("backend", "way", "beside", "instead"),
    [
        ("jax", "pmap", ["graph-capture=off"], ["graph-capture"]),
        ("jax", "sharded", ["graph-capture=off"], ["graph-capture"]),
        (
            "torch",
            "ddp",
            ["graph-capture", "steps-per-dispatch=1+graph-capture=off"],
            ["compile=off", "compiled-autograd=off", "overlap-reduction=off"],
        ),
    ],
)
def test_tuned_hides_exchanges_where_they_are_and_nothing_else_was_asked_for(
    backend: str, way: str, beside: list[str], instead: list[str]
) -> None:
    besides, _ = tunings.SYNCHRONISED[backend, "cuda", "resnet50"]
    own = besides.keys() - {"overlap-reduction"}  # which torch has anyway

    def on(tuning: str, workload: str = "resnet50", batch_norm: str = "sync") -> set[str]:
        values = tunings.resolve(backend, tuning, "cuda", workload, "bfloat16", batch_norm)
        return {name for name in own if values[name]}

    assert on(f"tuned+{way}") == own
    for knob in ("steps-per-dispatch=1", "compile", "rematerialisation=off", *beside):
        assert on(f"tuned+{way}+{knob}") == own, knob
    for knob in ("overlap-exchanges=off", "rematerialisation", "concurrent-kernels", *instead):
        assert on(f"tuned+{way}+{knob}") == set(), knob
    assert on("tuned") == on(f"compiled+{way}") == set()
    assert on(f"tuned+{way}", batch_norm="local") == on(f"tuned+{way}", "cifar-cnn") == set()
    assert on(f"tuned+{way}+overlap-exchanges") == {"overlap-exchanges"}


@pytest.mark.parametrize(("batch_norm", "hidden"), [("sync", True), ("local", False)])
def test_what_is_tuned_follows_a_plan_s_batch_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_norm: str, hidden: bool
) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    monkeypatch.setattr(environment, "count_visible_gpus", lambda: 2)
    options: dict[str, Any] = {"workload": "resnet50", "device": "cuda", "devices": 2, "batch_norm": batch_norm}
    texts, unread = ["jax:tuned+pmap", "torch:tuned+ddp"], plan.datasets.make_empty("not yet")
    made = plan.make(Settings(contenders=texts, out=tmp_path, **options), dataset=unread)
    assert [made.knobs(contender)["overlap-exchanges"] for contender in made.contenders] == [hidden, hidden]


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_gpus_are_numbered_as_they_are_watched(backend: str) -> None:
    name = "CUDA_DEVICE_ORDER"
    assert variables.make_child_environment(backend, {}, "cuda", False, {})[name] == "PCI_BUS_ID"
    own = {name: "FASTEST_FIRST"}
    assert variables.make_child_environment(backend, {}, "cuda", False, own)[name] == own[name]
    assert name not in variables.make_child_environment(backend, {}, "cpu", False, {})


def test_captured_reductions_are_not_watched() -> None:
    one, several = (tunings.resolve("torch", f"tuned{way}", "cuda", "resnet50") for way in ("", "+ddp"))
    lenient = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert variables.make_child_environment("torch", several, "cuda", False, {})[lenient] == "0"
    for other in (one, several | {"graph-capture": False}):
        assert lenient not in variables.make_child_environment("torch", other, "cuda", False, {})


def test_distributed_data_parallel_overlaps_unless_it_is_told_not_to() -> None:
    values = {
        tuning: tunings.resolve("torch", tuning, "cpu", "resnet50")["overlap-reduction"]
        for tuning in ("compiled", "stock+ddp", "compiled+ddp", "compiled+ddp+overlap-reduction=off")
    }
    assert list(values.values()) == [False, True, True, False]


def test_xla_hides_the_latency_of_reductions_where_it_is_asked_to() -> None:
    flag = "--xla_gpu_enable_latency_hiding_scheduler=true"

    def has(tuning: str, **machine: int) -> bool:
        knobs = tunings.resolve("jax", f"compiled+sharded{tuning}", "cuda", "resnet50")
        return (
            flag
            in variables.make_child_environment("jax", knobs, "cuda", False, {}, **machine).get("XLA_FLAGS", "").split()
        )

    assert not has("", devices=2)
    assert has("+overlap-reduction", devices=2)
    assert has("+overlap-reduction", machines=2)
    assert not has("+overlap-reduction"), "one device reduces nothing"
    with pytest.raises(Refused, match="overlap-reduction needs pmap or sharded in jax"):
        tunings.resolve("jax", "tuned+overlap-reduction", "cuda", "resnet50")
