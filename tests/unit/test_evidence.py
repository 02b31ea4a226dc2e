"""Noise floors from perturbed runs: the most of any, and of those at ten units of roundoff a tenth."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from compare.agreement.floors import ULP64
from compare.base import commands, workloads
from compare.base.commands import Command
from compare.base.interface import RunSpec, Value
from compare.base.precisions import PRECISIONS
from compare.data import dataset_file, datasets
from compare.data.datasets import Dataset
from compare.execution import certificate_cases, jobs, record_certificates
from compare.execution.certificate_cases import Case, Evidence
from compare.execution.jobs import Queue
from compare.execution.launcher import BESIDE_OTHERS, Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.settings import plan
from compare.settings.options import Settings
from compare.settings.plan import Plan
from compare.worker import recording
from compare.worker.worker import Worker
from tests.fakebackend import plans

CASE = Case(2, None)


@pytest.fixture(scope="module")
def images() -> Dataset:
    """Return the images of cifar-cnn, which take longer to make than any of these plans."""
    return datasets.load(workloads.get("cifar-cnn"), folder=None, seed=0, batch_size=512, epochs=4)


def _asked_of_the_baseline(made: Plan, folder: Path, patch: pytest.MonkeyPatch) -> list[Command[Any]]:
    """Return what a certificate asks of the first contender, in order."""
    asked = list[Command[Any]]()

    def look(_: Launcher, queues: Sequence[Queue], *__: Any) -> None:
        asked.extend(call.command for job in queues[0].jobs for call in job.calls)

    patch.setattr(jobs, "run_jobs", look)
    launcher, outcomes = (
        Launcher(made, folder),
        RunState(made, [ContenderRun(contender) for contender in made.contenders]),
    )
    dataset_file.save(made.dataset, launcher.dataset)
    record_certificates.certify(launcher, outcomes, [CASE], lambda *_: None)
    return asked


def test_the_last_five_runs_are_moved_ten_times_as_far() -> None:
    unit = PRECISIONS["bfloat16"].roundoff
    near = [(unit, first, first + 5) for first in (5, 10, 15)]
    found = Evidence({CASE: Path()}, "bfloat16").perturbations
    assert found == [(ULP64, 0, 5), *near, (10 * unit, 20, 25)]
    single = PRECISIONS["float32"].roundoff
    assert Evidence({CASE: Path()}, "float32").perturbations == [(ULP64, 0, 5), (single, 5, 10), (10 * single, 20, 25)]
    assert Evidence({CASE: Path()}, "float64").perturbations == [(ULP64, 0, 5)]


def test_a_few_runs_come_first_and_all_of_a_case_that_fails() -> None:
    def list_runs(evidence: Evidence) -> list[tuple[float, int]]:
        parts = evidence.list_perturbations(CASE)
        return sorted((roundoff, run) for roundoff, first, end in parts for run in range(first, end))

    unit = PRECISIONS["float32"].roundoff
    evidence = Evidence({CASE: Path()}, "float32")
    assert list_runs(evidence) == [(ULP64, 0), (10 * unit, 20)]
    evidence.floors[CASE] = {run: {} for run in evidence.list_perturbations(CASE)}
    assert evidence.is_noise_known(CASE)
    assert not evidence.has_all_noise(CASE)
    evidence.unsure.add(CASE)
    assert not evidence.is_noise_known(CASE)
    every = [(roundoff, run) for roundoff, first, end in evidence.perturbations for run in range(first, end)]
    assert list_runs(evidence) == sorted(every)  # each once
    half = Evidence({CASE: Path()}, "bfloat16")
    assert half.list_perturbations(CASE) == half.perturbations
    assert half.has_all_noise(CASE)


@pytest.mark.parametrize(("far", "floor"), [(5e-6, 5e-7), (2e-6, 3e-7)])
def test_a_floor_is_the_most_of_any_run_and_a_tenth_of_the_far_ones(far: float, floor: float) -> None:
    evidence = Evidence({CASE: Path()}, "float32")
    moved = (3e-15, 3e-7, far)
    evidence.floors[CASE] = {run: {"loss": by} for run, by in zip(evidence.perturbations, moved, strict=True)}
    noise = evidence.noise(CASE)
    assert noise.ulp == {"loss": 3e-15}
    assert noise.roundoff == pytest.approx({"loss": floor})
    of_float64 = Evidence({CASE: Path()}, "float64", floors={CASE: {(ULP64, 0, 5): {"loss": 3e-15}}})
    assert of_float64.noise(CASE).roundoff is None


@pytest.mark.parametrize(("backend", "compiles"), [("torch", False), ("jax", True)])
def test_noise_is_made_without_waiting_for_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Dataset, backend: str, compiles: bool
) -> None:
    made = plan.make(
        Settings(contenders=[f"{backend}:compiled+rematerialisation", "torch"], out=tmp_path, workload="cifar-cnn"),
        dataset=images,
    )
    asked = {command.name: command for command in _asked_of_the_baseline(made, tmp_path, monkeypatch)}
    noise, record = (cast(commands.Record, asked[name]).spec.knobs for name in ("noise", "record"))
    assert (noise["compile"], record["compile"]) == (compiles, True)
    assert noise["rematerialisation"] is True


@pytest.mark.parametrize(
    ("baseline", "batch_norm", "devices", "way"),
    [
        ("torch:stock+ddp", "sync", 1, "none"),
        ("torch:stock+ddp", "local", 2, "ddp"),
        ("jax:stock+pmap", "sync", 2, "pmap"),
    ],
)
def test_noise_is_made_on_one_device_where_that_computes_the_same_and_nothing_is_compiled_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    images: Dataset,
    baseline: str,
    batch_norm: str,
    devices: int,
    way: str,
) -> None:
    texts = [baseline, "jax:compiled+pmap"]
    made = plan.make(
        Settings(contenders=texts, out=tmp_path, workload="cifar-cnn", devices=2, device="cpu", batch_norm=batch_norm),
        dataset=images,
    )
    asked = {command.name: command for command in _asked_of_the_baseline(made, tmp_path, monkeypatch)}
    noise, record = (cast(commands.Record, asked[name]).spec for name in ("noise", "record"))
    assert (noise.devices, noise.knobs["parallel"]) == (devices, way)
    assert (record.devices, record.knobs["parallel"]) == (2, baseline.partition("+")[2])


@pytest.mark.parametrize(("cores", "first"), [(2, "noise"), (4, "record")])
def test_what_takes_longest_begins_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, first: str
) -> None:
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: cores)
    made = plan.make(Settings(contenders=["torch", "jax"], out=tmp_path, device="cpu"))
    # All of the noise in one job, or in as many as there are cores for, shorter each than what compiles.
    begun, *then = (command.name for command in _asked_of_the_baseline(made, tmp_path, monkeypatch))
    assert begun == first
    assert then[-1] == {"noise": "record", "record": "noise"}[first]


@pytest.mark.parametrize("order", [["bfloat16", "float64", "float32"], ["float64", "float32"]])
def test_the_timed_precision_is_recorded_first_by_a_child_that_has_compiled_it_to_train(
    order: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan.make(Settings(contenders=["torch", "jax"], out=tmp_path, device="cpu", precision=order[0]))
    asked = _asked_of_the_baseline(made, tmp_path, monkeypatch)
    precisions = [command.spec.precision for command in asked if isinstance(command, commands.Record)]
    assert precisions == order


@pytest.mark.parametrize(("tuning", "count"), [("compiled", 1), ("stock", 0)])
def test_beside_its_record_a_process_compiles_the_timed_path_in_the_timed_precision(
    tuning: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Dataset
) -> None:
    monkeypatch.setattr("compare.machine.cpu.count_usable_cores", lambda: 8)
    monkeypatch.setitem(BESIDE_OTHERS, "cpu", True)
    made = plan.make(
        Settings(contenders=[f"torch:{tuning}", "jax"], out=tmp_path, workload="cifar-cnn", precision="bfloat16"),
        dataset=images,
    )
    asked = list(_asked_of_the_baseline(made, tmp_path, monkeypatch))
    compiled = [command for command in asked if isinstance(command, commands.CompileTimedPath)]
    records = [command for command in asked if isinstance(command, commands.Record)]
    timed = [(each.spec, each.steps, each.evenly) for each in records if each.spec.precision == "bfloat16"]
    assert [(each.spec, each.steps, each.evenly) for each in compiled] == timed[:count]


@pytest.mark.parametrize(("dispatch", "evenly"), [(8, True), (24, True), (6, False), (1, False)])
def test_a_dispatch_that_takes_whole_epochs_is_certified_by_one_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Dataset, dispatch: int, evenly: bool
) -> None:
    made = plan.make(
        Settings(
            contenders=[f"jax:compiled+steps-per-dispatch={dispatch}", "torch"], out=tmp_path, workload="cifar-cnn"
        ),
        dataset=images,
    )
    assert len(made.dataset.train.labels) == 8 * made.batch_size
    asked = _asked_of_the_baseline(made, tmp_path, monkeypatch)
    assert {command.evenly for command in asked if isinstance(command, commands.Record)} == {evenly}


@pytest.mark.parametrize("precision", ["bfloat16", "float32", "float64"])
def test_kernels_are_searched_for_in_the_precision_that_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Dataset, precision: str
) -> None:
    searched = dict[str, Value]()

    def look(_: Launcher, queues: Sequence[Queue], *__: Any) -> None:
        for command in (call.command for job in queues[0].jobs for call in job.calls):
            if isinstance(command, (commands.Record, commands.MeasureNoise)):
                searched[f"{command.name} {command.spec.precision}"] = command.spec.knobs["kernel-search"]

    def as_on_a_gpu(outcome: ContenderRun, **changes: Any) -> RunSpec:
        spec = made.spec(outcome.contender, launcher.dataset, **changes)
        return replace(spec, knobs={**spec.knobs, "kernel-search": True})

    monkeypatch.setattr(jobs, "run_jobs", look)
    made = plan.make(
        Settings(contenders=["jax", "torch"], out=tmp_path, workload="cifar-cnn", precision=precision), dataset=images
    )
    launcher, outcomes = (
        Launcher(made, tmp_path),
        RunState(made, [ContenderRun(contender) for contender in made.contenders]),
    )
    monkeypatch.setattr(launcher, "spec", as_on_a_gpu)
    dataset_file.save(made.dataset, launcher.dataset)
    record_certificates.certify(launcher, outcomes, [CASE], lambda *_: None)
    assert searched.pop("noise float64") is False
    assert searched == {f"record {each}": each == precision for each in {"float64", "float32", precision}}


def test_infinite_noise_crosses_the_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "measure_noise", lambda *_: [{"gate.kernel": math.inf, "dense.kernel": 1e-9}])
    made = plan.make(Settings(contenders=["torch", "jax"], out=tmp_path, workload="digits-cnn", precision="float64"))
    launcher, evidence = Launcher(made, tmp_path), Evidence({CASE: tmp_path / "data"}, "float64")
    told = launcher.spec(ContenderRun(made.contenders[0]))
    nobody: Any = None
    said = Worker(nobody, time.perf_counter).noise(told, 3, [(ULP64, 0, 5)])
    (queue, _) = record_certificates._make_queues(
        launcher, RunState(made, [ContenderRun(each) for each in made.contenders]), evidence, bool
    )
    (call,) = (each for job in queue.jobs for each in job.calls if each.command.name == "noise")
    call.keep(json.loads(json.dumps(said, allow_nan=False)))
    assert evidence.noise(CASE).ulp == {"gate.kernel": math.inf, "dense.kernel": 1e-9}


@pytest.mark.parametrize(("size", "batch"), [(8, 7), (64, 3)])
def test_an_odd_batch_of_large_images_is_small(
    size: int, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, tmp_path)
    made = plans.make(tmp_path / "out", ("fake", "other"))
    plan = replace(made, workload=replace(made.workload, model=made.workload.model.resized(size)))
    assert certificate_cases.make_adversarial_cases(plan)[1:] == (Case(2, size + 1), Case(batch, size + 2))
