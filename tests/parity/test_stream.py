"""`input=stream` trains what `input=resident` trains."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from compare.base.interface import Array, Arrays, Batch, Session
from compare.data import weights
from compare.settings import tunings
from tests.parity import recorded_graph, twins

STEPS = 11  # more than there are batches, and no multiple of the steps of a dispatch
DISPATCH = 3

SEVERAL = f"compiled+steps-per-dispatch={DISPATCH}"
SLOW = pytest.mark.slow
CASES = [
    *[("jax", tuning, "digits-cnn", "float64", "bytes") for tuning in ("stock", "compiled", SEVERAL)],
    pytest.param("jax", "compile=off", "digits-cnn", "float64", "bytes", marks=pytest.mark.thorough),
    *[("torch", tuning, "digits-cnn", "float64", "bytes") for tuning in ("stock", "tuned")],
    ("jax", SEVERAL, "digits-cnn", "float32", "values"),
    ("torch", "tuned", "digits-cnn", "float32", "values"),
    ("jax", SEVERAL, "cifar-cnn", "bfloat16", "bytes"),
    ("torch", "stock", "cifar-cnn", "bfloat16", "bytes"),
    pytest.param("torch", "compiled", "cifar-cnn", "float32", "bytes", marks=[SLOW, pytest.mark.thorough]),
    pytest.param("torch", "compiled+channels-last", "digits-cnn", "bfloat16", "values", marks=SLOW),
]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch):
    twins.narrow(monkeypatch)


def pixels(workload: str, count: int, *, size: int = 8, seed: int = 5) -> list[Batch]:
    """Return batches of bytes. Only their table knows their values."""
    random = np.random.default_rng(seed)
    drawn = twins.batches(workload, count, size=size)
    levels = random.normal(size=(256, drawn[0].images.shape[-1])).astype(np.float32)
    return [
        Batch(random.integers(0, 256, each.images.shape, dtype=np.uint8), each.labels, levels)  # all of 0 to 255
        for each in drawn
    ]


KINDS = {"bytes": pixels, "values": twins.batches}


def both(backend: str, tuning: str, workload: str, **changes: Any) -> tuple[Session, Session]:
    """Return a resident session and one that streams."""
    resident, stream = (
        twins.session(backend, workload, f"{tuning}+input={kind}", **changes) for kind in ("resident", "stream")
    )
    return resident, stream


def state(session: Session) -> Arrays:
    exported = session.export()
    return {**exported.parameters, **exported.buffers, **exported.optimizer, "losses": session.losses()}


def equal(value: Arrays, reference: Arrays) -> None:
    """Compare bit for bit."""
    assert value.keys() == reference.keys()
    for name, array in value.items():
        np.testing.assert_array_equal(array, reference[name], err_msg=name)


@pytest.mark.parametrize(("backend", "tuning", "workload", "precision", "kind"), CASES)
def test_a_stream_trains_what_resident_batches_train(
    backend: str, tuning: str, workload: str, precision: str, kind: str
):
    pool = KINDS[kind](workload, 4)
    resident, stream = both(backend, tuning, workload, precision=precision)
    for batches, parts in ((pool, (STEPS,)), (pool[::-1], (4, 1, 6))):  # fed and assigned again, run in parts
        for session in (resident, stream):
            session.assign(weights.randomise(session.signature(), 3))
            session.feed(batches)
            for steps in parts:
                session.run(steps)
            session.wait()
        equal(state(stream), state(resident))
        assert stream.export().step == STEPS
    read = stream.settings()
    assert read["compile"] == tunings.resolve(backend, tuning, "cpu", workload)["compile"]
    assert read.get("graph-breaks", 0) == 0


@pytest.mark.parametrize("backend", twins.BOTH)
def test_what_is_recorded_comes_through_the_same_lookup(backend: str):
    batch = pixels("digits-cnn", 1)[0]
    resident, stream = both(backend, "stock", "digits-cnn")
    equal(stream.inspect(batch), resident.inspect(batch))
    equal(state(stream), state(resident))
    np.testing.assert_array_equal(stream.logits(batch.values()), resident.logits(batch.values()))


@pytest.mark.parametrize("backend", twins.BOTH)
def test_micro_batches_are_cut_from_what_crossed(backend: str):
    pool = pixels("digits-cnn", 2)
    resident, stream = both(backend, "stock", "digits-cnn", accumulate=2)
    equal(*(state(twins.trained(session, pool, 5)) for session in (stream, resident)))


@pytest.mark.parametrize("backend", twins.BOTH)
def test_the_input_is_read_back_and_reading_changes_nothing(backend: str):
    dtypes = {"resident": "float64", "stream": "uint8"}
    for name, session in zip(dtypes, both(backend, "stock", "digits-cnn"), strict=True):
        twins.trained(session, pixels("digits-cnn", 3), 4)
        before = state(session)
        found = session.settings()
        session.memory()
        assert (found["input"], found["input_dtype"], found["batch_size"]) == (name, dtypes[name], 8)
        equal(state(session), before)
    values = twins.trained(twins.session(backend, tuning="input=stream"), twins.batches("digits-cnn", 2), 1)
    assert values.settings()["input_dtype"] == "float64"


@pytest.mark.parametrize("backend", twins.BOTH)
def test_other_bytes_and_other_levels_may_follow(backend: str):
    resident, stream = both(backend, "stock", "digits-cnn")
    for pool in (pixels("digits-cnn", 2), pixels("digits-cnn", 3, seed=6), twins.batches("digits-cnn", 2)):
        for session in (resident, stream):
            twins.trained(session, pool, 4)
        equal(state(stream), state(resident))
    for session in (resident, stream):
        twins.trained(session, pixels("digits-cnn", 2, size=6), 3)  # another batch size
    equal(state(stream), state(resident))


@pytest.mark.parametrize("backend", twins.BOTH)
def test_batches_that_no_unit_can_hold_are_an_error(backend: str):
    session = twins.session(backend, tuning="input=stream")
    whole, other = pixels("digits-cnn", 1)[0], pixels("digits-cnn", 1, seed=6)[0]
    one = replace(whole, images=whole.images[:1], labels=whole.labels[:1])  # would be broadcast
    for wrong, message in ((one, "batches of one size"), (other, "one table of levels")):
        with pytest.raises(ValueError, match=message):
            session.feed([whole, wrong])
    with pytest.raises(ValueError, match="batches of one size"):
        twins.session(backend).feed([whole, one])


@pytest.mark.parametrize("kind", ["bytes", "values"])
@pytest.mark.parametrize("count", [1, DISPATCH])
def test_a_graph_reads_what_the_stream_brought(count: int, kind: str, monkeypatch: pytest.MonkeyPatch):
    pool = KINDS[kind]("cifar-cnn", 4)
    plain = twins.trained(twins.session("torch", "cifar-cnn"), pool, STEPS)
    recorded_graph.pretend(monkeypatch)
    spec = twins.spec("torch", "cifar-cnn", "input=stream")
    switches = {**spec.knobs, "graph-capture": True, "steps-per-dispatch": count}
    session = twins.BACKENDS["torch"].open(replace(spec, knobs=switches))
    for _ in range(2):
        session.assign(weights.randomise(session.signature(), 3))
        twins.trained(session, pool, STEPS)
        equal(session.export().parameters, plain.export().parameters)
        np.testing.assert_array_equal(session.losses(), plain.losses())
    found = session.settings()
    assert (found["graph-capture"], found["steps-per-dispatch"], found["input"]) == (True, count, "stream")


# torch.compile warns of float32 on a GPU that has TF32.
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no cuda device")
@pytest.mark.parametrize("tuning", ["stock", "tuned", "tuned+graph-capture=off+steps-per-dispatch=1"])
@pytest.mark.parametrize("backend", twins.BOTH)
def test_no_batch_is_torn_on_a_gpu(backend: str, tuning: str):
    pool = pixels("cifar-cnn", 7, size=256)
    losses: list[Array] = []
    for kind in ("resident", "stream"):
        switches = tunings.resolve(backend, f"{tuning}+input={kind}", "cuda", "cifar-cnn")
        spec = twins.spec(backend, "cifar-cnn", precision="float32", device="cuda", batch_size=256)
        session = twins.BACKENDS[backend].open(replace(spec, knobs=switches))
        session.assign(weights.randomise(session.signature(), 3))
        losses.append(twins.trained(session, pool, 60).losses())
    # Not bit for bit: sums are taken in any order.
    np.testing.assert_allclose(losses[1][:30], losses[0][:30], rtol=1e-3)
