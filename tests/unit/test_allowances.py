"""Running variances, biased against unbiased: accepted exactly where the factor n/(n-1) is all that differs."""

from dataclasses import replace

import numpy as np
import pytest

from compare.agreement import gates
from compare.agreement.allowances import ALLOWED, convert_to_biased_variance, read_momenta
from compare.base.interface import Arrays
from compare.base.trace import Layer

SHAPE, CHANNELS, STEPS = (4, 3, 3, 5), 5, 3
MOMENTUM = 0.1


def _record(
    *, factor: float, momentum: float = MOMENTUM, calls: int = 1, accumulate: int = 1, dtype: str = "float64"
) -> Arrays:
    """A record whose `norm` keeps `factor` times each batch's biased variance."""
    random = np.random.default_rng(7)
    start = {"norm.mean": random.normal(size=CHANNELS), "norm.var": random.uniform(0.5, 2, CHANNELS)}
    record, state = {f"initial/{name}": array.copy() for name, array in start.items()}, dict(start)
    for step in range(1, STEPS + 1):
        for call in range(calls):
            images = random.normal(size=(SHAPE[0] * accumulate, *SHAPE[1:]))
            record[f"step{step}/activation/norm{f'#{call + 1}' if call else ''}"] = images
            for part in np.split(images, accumulate):
                batch = {"norm.mean": part.mean((0, 1, 2)), "norm.var": factor * part.var((0, 1, 2))}
                state = {name: (1 - momentum) * state[name] + momentum * batch[name] for name in state}
        record[f"step{step}/loss"] = np.asarray(1.0 + step)
        record |= {f"step{step}/buffer/{name}": array for name, array in state.items()}
    record |= {f"delta/{name}": state[name] - start[name] for name in state}
    return {name: array.astype(dtype) for name, array in record.items()}


SIZE = SHAPE[0] * SHAPE[1] * SHAPE[2]
UNBIASED = SIZE / (SIZE - 1)


def _worst(biased: Arrays, unbiased: Arrays, **more: int) -> float:
    return max(gates.measure_errors(biased, convert_to_biased_variance(unbiased, {"norm": MOMENTUM}, **more)).values())


@pytest.mark.parametrize(("calls", "accumulate"), [(1, 1), (2, 1), (1, 4), (3, 2)])
def test_biased_and_unbiased_agree_once_it_is_allowed(calls: int, accumulate: int) -> None:
    biased = _record(factor=1, calls=calls, accumulate=accumulate)
    unbiased = _record(factor=UNBIASED, calls=calls, accumulate=accumulate)
    errors = gates.measure_errors(biased, unbiased)
    assert errors["step1/buffer/norm.var"] > 1e-4
    assert errors["delta/norm.var"] > 1e-4
    assert _worst(biased, unbiased, accumulate=accumulate) < 1e-14


def test_the_statistics_of_a_device_count_its_own_part() -> None:
    sides = [_record(factor=1), _record(factor=UNBIASED)]
    for record in sides:  # the other device's activations stand beside
        record |= {name: np.concatenate([array] * 2) for name, array in record.items() if "/activation/" in name}
    assert _worst(*sides, devices=2) < 1e-14
    assert _worst(*sides) > 1e-5


def test_the_gates_pass_on_the_result() -> None:
    sides = [
        {dtype: _record(factor=factor, dtype=dtype) for dtype in ("float64", "float32")} for factor in (1, UNBIASED)
    ]
    sides[1] = {dtype: convert_to_biased_variance(record, {"norm": MOMENTUM}) for dtype, record in sides[1].items()}
    assert sides[1]["float32"]["step1/buffer/norm.var"].dtype == np.float32
    e64, e32 = (gates.measure_errors(sides[0][dtype], sides[1][dtype]) for dtype in ("float64", "float32"))
    assert gates.judge_semantic(e64).passed
    assert gates.judge_scaling(gates.measure_scaling(e32, e64, *sides)).passed


@pytest.mark.parametrize("factor", [1.0, (SIZE + 1) / SIZE, SIZE * UNBIASED / (SIZE - 2), UNBIASED * (1 + 1e-6)])
def test_another_factor_still_fails(factor: float) -> None:
    assert _worst(_record(factor=1), _record(factor=factor)) > 1e-8


@pytest.mark.parametrize("momentum", [0.01, 0.11, 0.9, 0.1 + 1e-7])
def test_another_momentum_still_fails_on_either_side(momentum: float) -> None:
    assert _worst(_record(factor=1), _record(factor=UNBIASED, momentum=momentum)) > 1e-8
    assert _worst(_record(factor=1, momentum=momentum), _record(factor=UNBIASED)) > 1e-8
    wrong = convert_to_biased_variance(_record(factor=UNBIASED), {"norm": momentum})
    assert max(gates.measure_errors(_record(factor=1), wrong).values()) > 1e-10


def test_means_and_all_else_are_left_as_they_are() -> None:
    record = _record(factor=UNBIASED)
    changed = convert_to_biased_variance(record, {"norm": MOMENTUM})
    assert list(changed) == list(record)
    assert all(
        changed[name] is record[name] for name in record if not name.endswith(".var") or name.startswith("initial")
    )


def test_one_value_a_channel_has_no_unbiased_variance() -> None:
    record = {name: array[:1, :1, :1] if "activation" in name else array for name, array in _record(factor=2).items()}
    changed = convert_to_biased_variance(record, {"norm": MOMENTUM})
    assert all(changed[name] is record[name] for name in record)


def _norm(path: str, kind: str, momentum: float | None = MOMENTUM) -> Layer:
    return Layer(path, "batch-norm", (), {"running_variance": kind, "momentum": momentum}, (2, 5), (2, 5), ("",))


def test_only_layers_whose_sides_differ_are_named_and_by_the_unbiased_side() -> None:
    pairs = [
        (_norm("a", "unbiased"), _norm("A", "biased", 0.2)),
        (_norm("b", "unbiased"), _norm("B", "unbiased")),
        (_norm("c", "biased"), _norm("C", "biased")),
        (_norm("d", "biased"), _norm("D", "unbiased", 0.3)),
        (_norm("e", "unbiased", None), _norm("E", "biased")),
        (Layer("f", "dense", (), {}, (2, 5), (2, 5), ("",)), Layer("F", "dense", (), {}, (2, 5), (2, 5), ("",))),
    ]
    assert read_momenta(pairs) == {"torch": {"a": 0.1}, "jax": {"d": 0.3}}


@pytest.mark.parametrize(("torch", "flax", "named"), [("running", "running", {}), ("batch", "running", {"a": 0.1})])
def test_a_frozen_layer_moves_no_variance(torch: str, flax: str, named: dict[str, float]) -> None:
    sides = (_norm("a", "unbiased"), torch), (_norm("A", "biased"), flax)
    first, second = (
        replace(layer, settings={**layer.settings, "statistics": statistics}) for layer, statistics in sides
    )
    assert read_momenta([(first, second)])["torch"] == named


def test_every_name_is_documented_in_one_line() -> None:
    assert list(ALLOWED) == ["running-variance"]
    assert all(text and "\n" not in text for text in ALLOWED.values())
