"""What explains a step, from real sessions on a CPU: equal operations, layers, and causes that are planted in torch."""

import time
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch

from compare.base.interface import Session
from compare.base.profiles import Peaks
from compare.explain import findings, host_events, step_table
from compare.explain.findings import Side
from compare.explain.work_classes import CONVOLUTIONS, POOL, PRODUCT, UNATTRIBUTED
from compare.results.explanation import Finding
from compare.settings import tunings
from tests.parity import small, twins

STEPS = 5


def count_operations(session: Session) -> Counter[tuple[str, str, str]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for operation in session.operations():
        counts[operation.layer, operation.kind, operation.direction] += operation.flops
    return counts


@pytest.mark.parametrize("name", small.SIDES)
def test_both_traces_count_the_same_operations_in_the_same_layers(name: str) -> None:
    workload = small.small(name, small.SIDES[name])
    counts: list[Counter[tuple[str, str, str]]] = []
    for backend in twins.BOTH:
        session = twins.BACKENDS[backend].open(small.spec(workload, backend, "stock"))
        session.feed(small.batches(workload))
        counts.append(count_operations(session))
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) > 0
    assert "" not in {layer for layer, _, _ in counts[0]}


def opened(backend: str, knobs: str = "stock") -> Session:
    session = twins.session(backend, tuning=knobs, precision="float32", batch_size=64)
    session.feed(twins.batches("digits-cnn", 2, size=64))
    return session


def explain(session: Session, name: str, backend: str, knobs: str = "stock") -> Side:
    """Return a contender's side of an explanation, from its profile."""
    session.watch()
    session.run(3)
    session.wait()
    profile = session.profile(STEPS)
    start = time.perf_counter()
    session.run(STEPS)
    session.wait()
    seconds = (time.perf_counter() - start) / STEPS
    table = step_table.build(seconds, profile, None, session.operations(), Peaks(1e10, 1e11))
    switches = tunings.resolve(backend, knobs, "cpu", "digits-cnn")
    return Side(name, backend, table, switches, {}, seconds, host_events.read(profile), "cpu")


@pytest.mark.parametrize("backend", twins.BOTH)
def test_a_step_is_attributed_to_classes_and_layers(backend: str) -> None:
    side = explain(opened(backend), backend, backend)
    assert side.table.classes[UNATTRIBUTED].seconds == 0
    assert sum(work.seconds for work in side.table.classes.values()) == pytest.approx(side.table.step_seconds)
    for work in (CONVOLUTIONS["forward"], CONVOLUTIONS["weight-gradient"], POOL, PRODUCT):
        assert side.table.classes[work].seconds > 0, work
    assert {("conv", "forward"), ("conv", "weight-gradient"), ("pool", "forward"), ("dense", "weight-gradient")} <= {
        *side.table.layers
    }
    assert side.table.layers["conv", "forward"].flops == side.table.classes[CONVOLUTIONS["forward"]].flops > 0


def copy_to_and_fro(images: torch.Tensor) -> torch.Tensor:
    many = images.repeat(8, 1, 1, 1)
    for _ in range(10):
        many = many.contiguous(memory_format=torch.channels_last).contiguous()
    return many[: len(images)]


def cast(images: torch.Tensor) -> torch.Tensor:
    for _ in range(60):
        images = images.double().float()
    return images


def compute(images: torch.Tensor) -> torch.Tensor:
    for _ in range(120):
        images = images.sin()
    return images


@pytest.fixture
def one_thread() -> Generator[None]:
    """Compute in one thread: on a busy machine, two would wait for each other at the end of each operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def find_planted(plant: Callable[[torch.Tensor, float], torch.Tensor]) -> list[Finding]:
    """Return the findings about a plain session and one with a plant. It gets images and the plain step's seconds."""
    clean, planted = opened("torch"), opened("torch")
    plain_side = explain(clean, "clean", "torch")
    pool = planted._modules()["pool"]  # type: ignore[attr-defined] -- the session is torch's
    plain = pool.forward
    pool.forward = lambda images: plain(plant(images, plain_side.table.step_seconds))
    return findings.find([explain(planted, "planted", "torch"), plain_side])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (copy_to_and_fro, "changes of memory order"),
        (cast, "changes of dtype"),
        (compute, "layer pool takes"),
    ],
)
def test_a_cause_that_is_planted_in_a_step_is_found(plant: Callable[[Any], Any], words: str) -> None:
    found = find_planted(lambda images, _: plant(images))
    assert [finding.contender for finding in found if words in finding.text] == ["planted"], found


@pytest.mark.usefixtures("one_thread")
def test_a_sleep_as_long_as_a_step_is_found() -> None:
    def sleep(images: torch.Tensor, seconds: float) -> torch.Tensor:
        time.sleep(seconds)
        return images

    found = find_planted(sleep)
    assert [finding.contender for finding in found if "such as a sleep" in finding.text] == ["planted"], found
