"""Sessions of both backends through the shared interface, in one process on the CPU."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._functorch import config as functorch
from torch._inductor import cpu_vec_isa

import torchbackend.session
from compare.agreement import gates
from compare.base import workloads
from compare.base.interface import Arrays, Refused, Session
from compare.base.workloads import OptimizerSpec
from compare.data import dataset_file, datasets, weights
from compare.machine import variables
from tests.parity import twins
from torchbackend.only import programs, vector_instructions
from torchbackend.step import TrainingStep

BOTH = pytest.mark.parametrize("backend", twins.BOTH)


def state(session: Session) -> Arrays:
    exported = session.export()
    return {**exported.parameters, **exported.buffers, **exported.optimizer}


def equal(value: Arrays, reference: Arrays, tolerance: float) -> None:
    assert value.keys() == reference.keys()
    for name, array in value.items():
        error = np.linalg.norm(array - reference[name]) / np.linalg.norm(reference[name])
        assert error <= tolerance, f"{name}: {error}"


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch):
    twins.narrow(monkeypatch)


@pytest.mark.parametrize("workload", twins.WORKLOADS)
def test_both_backends_have_the_same_tensors_in_the_same_order(workload: str):
    signatures = [list(twins.session(backend, workload).signature().items()) for backend in twins.BOTH]
    assert signatures[0] == signatures[1]


@BOTH
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_what_is_assigned_is_exported_bit_by_bit(backend: str, precision: str):
    session = twins.session(backend, "cifar-cnn", precision=precision)
    assigned = weights.randomise(session.signature(), 3)
    exported = session.export()
    found = {**exported.parameters, **exported.buffers}
    assert [name for name in assigned if name in exported.parameters] == list(exported.parameters)
    assert [name for name in assigned if name in exported.buffers] == list(exported.buffers)
    for name, array in assigned.items():
        assert found[name].dtype == precision
        np.testing.assert_array_equal(found[name], array)
    assert exported.step == 0


@BOTH
def test_an_export_is_a_copy(backend: str):
    session, pool = twins.session(backend), twins.batches("digits-cnn", 1)
    before = session.export().parameters
    kept = {name: array.copy() for name, array in before.items()}
    session = twins.trained(session, pool, 1)
    after = session.export().parameters
    for name, array in before.items():
        np.testing.assert_array_equal(array, kept[name])
        assert not np.array_equal(array, after[name])


@BOTH
@pytest.mark.parametrize("nesterov", [False, True])
def test_later_steps_leave_a_step_s_internals_as_they_are(
    backend: str, nesterov: bool, monkeypatch: pytest.MonkeyPatch
):
    real = workloads.get("cifar-cnn")
    changed = replace(real, optimizer=OptimizerSpec("sgd", 0.1, momentum=0.9, nesterov=nesterov))
    monkeypatch.setattr(workloads, "WORKLOADS", {"cifar-cnn": changed})
    session, pool = twins.session(backend, "cifar-cnn"), twins.batches("cifar-cnn", 2)
    first = session.inspect(pool[0])
    copies = {name: array.copy() for name, array in first.items()}
    session.inspect(pool[1])
    twins.trained(session, pool, 2)
    for name, array in first.items():
        np.testing.assert_array_equal(array, copies[name], err_msg=name)


@BOTH
def test_running_steps_is_inspecting_them(backend: str):
    pool = twins.batches("digits-cnn", 3)
    ran = twins.trained(twins.session(backend), pool, 3)
    inspected = twins.session(backend)
    found = [inspected.inspect(batch) for batch in pool]
    equal(state(ran), state(inspected), 1e-13)
    np.testing.assert_allclose(ran.losses(), [internals["loss"] for internals in found], rtol=1e-13)
    assert ran.export().step == inspected.export().step == 3


@BOTH
def test_assigning_again_starts_again(backend: str):
    session, pool = twins.session(backend), twins.batches("digits-cnn", 2)
    first = state(twins.trained(session, pool, 2))
    session.assign(weights.randomise(session.signature(), 3))
    assert session.export().step == 0
    second = state(twins.trained(session, pool, 2))
    equal(second, first, 0.0)


@pytest.fixture(scope="module")
def ten_steps() -> dict[str, Session]:
    """Ten float64 steps over a pool of four batches, in stock tuning."""
    pool = twins.batches("digits-cnn", 4)
    return {backend: twins.trained(twins.session(backend), pool, 10) for backend in twins.BOTH}


COMPILED = [pytest.mark.slow, pytest.mark.thorough]
VARIANTS = [
    ("jax", "compile=off"),
    ("jax", "compiled"),
    ("jax", "pieces"),
    ("jax", "stock+steps-per-dispatch=3"),
    ("jax", "tuned+steps-per-dispatch=5"),
    ("torch", "channels-last"),
    ("torch", "fused-optimizer"),
    ("torch", "tuned"),
    pytest.param("torch", "compiled", marks=COMPILED),
]


@pytest.mark.parametrize(("backend", "tuning"), VARIANTS)
def test_a_tuning_computes_what_stock_computes(backend: str, tuning: str, ten_steps: dict[str, Session]):
    stock = ten_steps[backend]
    session = twins.trained(twins.session(backend, tuning=tuning), twins.batches("digits-cnn", 4), 10)
    equal(state(session), state(stock), 1e-12)
    np.testing.assert_allclose(session.losses(), stock.losses(), rtol=1e-12)
    assert session.export().step == 10


@BOTH
def test_step_i_trains_on_batch_i_of_the_pool_in_turn(backend: str):
    pool = twins.batches("digits-cnn", 2)
    session = twins.trained(twins.session(backend), pool, 3)
    session.run(2)
    by_hand = twins.session(backend)
    for index in (0, 1, 0, 1, 0):
        by_hand.inspect(pool[index])
    equal(state(session), state(by_hand), 1e-13)
    assert len(session.losses()) == 5


@BOTH
@pytest.mark.parametrize("reading", ["settings", "memory"])
def test_reading_settings_and_memory_changes_nothing(backend: str, reading: str, ten_steps: dict[str, Session]):
    session = twins.trained(twins.session(backend), twins.batches("digits-cnn", 4), 4)
    getattr(session, reading)()
    session.run(6)
    equal(state(session), state(ten_steps[backend]), 1e-13)
    np.testing.assert_allclose(session.losses(), ten_steps[backend].losses(), rtol=1e-13)


@BOTH
def test_steps_under_the_profiler_are_steps_and_a_cpu_shows_no_kernels(backend: str, ten_steps: dict[str, Session]):
    session = twins.trained(twins.session(backend), twins.batches("digits-cnn", 4), 4)
    assert session.kernels(6) == []
    equal(state(session), state(ten_steps[backend]), 1e-13)


@BOTH
def test_feeding_forgets_losses_and_position(backend: str):
    session, pool = twins.session(backend), twins.batches("digits-cnn", 2)
    twins.trained(session, pool, 3)
    session.feed(pool)
    assert session.losses().shape == (0,)
    before = twins.session(backend)
    before.assign(session.export().parameters)
    session.assign(session.export().parameters)
    session.run(1)
    np.testing.assert_allclose(session.losses(), before.inspect(pool[0])["loss"], rtol=1e-13)


@pytest.mark.parametrize(("backend", "tuning"), [("jax", "steps-per-dispatch=4+compile"), ("torch", "stock")])
def test_the_last_losses_are_kept(backend: str, tuning: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"{backend}backend.session.KEPT_LOSSES", 6)
    session = twins.trained(twins.session(backend, tuning=tuning), twins.batches("digits-cnn", 3), 10)
    whole = twins.session(backend)
    found = [whole.inspect(twins.batches("digits-cnn", 3)[step % 3])["loss"] for step in range(10)]
    np.testing.assert_allclose(session.losses(), found[-6:], rtol=1e-12)


@pytest.mark.parametrize("workload", twins.WORKLOADS)
def test_the_backends_agree_on_losses_logits_and_state(workload: str):
    pool = twins.batches(workload, 2)
    sessions = [twins.trained(twins.session(backend, workload), pool, 3) for backend in twins.BOTH]
    equal(state(sessions[0]), state(sessions[1]), 1e-11)
    np.testing.assert_allclose(sessions[0].losses(), sessions[1].losses(), rtol=1e-12)
    logits = [session.logits(pool[0].images[:5]) for session in sessions]
    assert logits[0].shape == logits[1].shape == (5, 10)
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-10, atol=1e-12)


READ_BACK = [
    ("jax", "stock", {"compile": True, "donation": False, "steps-per-dispatch": 1}),
    ("jax", "compile=off", {"compile": False, "donation": False}),
    ("jax", "pieces", {"compile": True, "pieces": True, "donation": False}),
    ("jax", "compiled", {"compile": True, "pieces": False, "donation": True}),
    ("jax", "tuned", {"graph-capture": False, "kernel-search": False}),
    ("jax", "compiled+steps-per-dispatch=4", {"compile": True, "donation": True, "steps-per-dispatch": 4}),
    ("torch", "stock", {"compile": False, "channels-last": False, "fused-optimizer": False, "graph-capture": False}),
    ("torch", "tuned", {"compile": False, "channels-last": True, "fused-optimizer": True}),
    pytest.param("torch", "compiled", {"compile": True, "graph-breaks": 0}, marks=COMPILED),
]


@pytest.mark.parametrize(("backend", "tuning", "expected"), READ_BACK)
def test_settings_are_read_back(backend: str, tuning: str, expected: dict):
    pool = twins.batches("digits-cnn", 4)
    session = twins.trained(twins.session(backend, tuning=tuning), pool, 4)
    shared = {"parameter_dtype": "float64", "compute_dtype": "float64", "tf32": None, "loss_scaling": False}
    found = session.settings()
    assert {name: found[name] for name in shared | expected} == shared | expected
    assert found["batch_size"] == 8


@pytest.mark.parametrize("tuning", ["compiled+steps-per-dispatch=4", "compiled+steps-per-dispatch=4+input=stream"])
def test_settings_are_those_of_the_program_that_is_timed_and_no_other_is_compiled(tuning: str):
    session: Any = twins.trained(twins.session("jax", tuning=tuning), twins.batches("digits-cnn", 4), 8)
    step = session._step
    assert step.programs == 1
    assert session.settings()["compile"] is True
    assert (step.several._cache_size(), step.program._cache_size()) == (1, 0)


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("option", ["concurrent-kernels", "max-autotune"])
def test_options_of_torch_s_compiler_are_set_and_read_back(option: str, on: bool):
    knobs = {**twins.spec("torch").knobs, option: on}
    session = twins.trained(twins.session("torch", knobs=knobs), twins.batches("digits-cnn", 1), 1)
    assert session.settings()[option] is on


@BOTH
def test_tf32_is_refused_on_a_cpu(backend: str):
    with pytest.raises(Refused, match="tf32 needs --device cuda"):
        twins.session(backend, precision="tf32")


@BOTH
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a cuda device")
def test_a_missing_device_is_refused(backend: str):
    with pytest.raises(Refused, match=f"{backend} sees no cuda device"):
        twins.session(backend, device="cuda")


def test_torch_looks_for_vector_instructions_before_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    probes = cpu_vec_isa.valid_vec_isa_list
    probes.cache_clear()
    twins.session("torch", tuning="compiled")
    assert probes.cache_info().currsize == 1
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert not list(tmp_path.rglob("*.so"))  # the run's own cache is for its programs


def test_torch_loads_each_probe_of_vector_instructions_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    probe: Any = cpu_vec_isa.VecISA
    load, loaded = probe._probe_load, list[str]()

    def note(instructions: Any, path: str) -> bool:
        loaded.append(path)
        return load(instructions, path)

    monkeypatch.setattr(probe, "_probe_load", note)
    monkeypatch.setattr(probe, "__bool__", lambda self: self.check_build(probe._avx_code))  # torch's remembers
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", [cpu_vec_isa.VecAVX2()])
    found = list[Any]()
    for _ in range(2):
        cpu_vec_isa.valid_vec_isa_list.cache_clear()
        vector_instructions.find(tmp_path)
        found.append(cpu_vec_isa.valid_vec_isa_list())
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    assert [f"{path}.loads" for path in loaded] == [str(path) for path in tmp_path.rglob("*.loads")]
    assert len(loaded) == 1
    assert found[0] == found[1] == [cpu_vec_isa.VecAVX2()]


@pytest.mark.slow
@pytest.mark.usefixtures("without_kernels")
def test_torch_keeps_a_compiled_program_with_its_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = variables.make_cache_environment("torch", tmp_path, tmp_path / "kept")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", asked["TORCHINDUCTOR_CACHE_DIR"])
    # torch reads the variable when it is imported.
    switch = "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD"
    assert asked[switch] == "1"
    assert switch in Path(functorch.__file__).read_text()
    with functorch.patch(autograd_cache_allow_custom_autograd_functions=True):
        opened = twins.session("torch", tuning="compiled", precision="bfloat16")
        twins.trained(opened, twins.batches("digits-cnn", 1), 1)
    found = torchbackend.session.counters["aot_autograd"]
    assert (found["autograd_cache_saved"], found["autograd_cache_bypass"]) == (1, 0)


def test_a_record_compiles_the_timed_path_alone_where_the_inspected_one_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "compiler", lambda **_: "aot_eager")  # a C++ compiler would take most of the time
    path = tmp_path / "data.safetensors"
    dataset_file.save(datasets.load(workloads.get("digits-cnn"), folder=None, seed=0, batch_size=8), path)
    told = twins.spec("torch", tuning="compiled", data=str(path), inspects_uncompiled=True)
    opened = twins.BACKENDS["torch"].open(told)
    opened.assign(weights.randomise(opened.signature(), 3))
    pool = twins.batches("digits-cnn", 2)
    opened.inspect(pool[0])
    opened.feed(pool)
    assert not opened.settings()["compile"]
    opened.run(1)
    assert opened.settings()["compile"]
    sound = twins.recorded(twins.BACKENDS["torch"], twins.spec("torch", data=str(path)), 1)
    objective = TrainingStep._objective

    def wrong_when_compiled(step: TrainingStep, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Any]:
        loss, logits = objective(step, images, labels)
        return (loss * 1.000001 if torch.compiler.is_compiling() else loss), logits

    monkeypatch.setattr(TrainingStep, "_objective", wrong_when_compiled)
    wrong = twins.recorded(twins.BACKENDS["torch"], told, 1)
    errors = gates.measure_errors(sound, wrong)
    assert gates.judge_semantic({name: error for name, error in errors.items() if not name.startswith("delta/")}).passed
    assert not gates.judge_semantic(errors).passed
