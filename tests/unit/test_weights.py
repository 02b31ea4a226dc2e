"""Initial weights: their bits, their distributions, what they depend on."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from compare.base.interface import Arrays, Refused
from compare.data import weights

Maker = Callable[[Mapping[str, tuple[int, ...]], int], Arrays]

SHAPES: dict[str, tuple[int, ...]] = {
    "conv1.kernel": (3, 3, 1, 32),
    "conv1.bias": (32,),
    "norm1.scale": (32,),
    "norm1.bias": (32,),
    "norm1.mean": (32,),
    "norm1.var": (32,),
    "dense1.kernel": (128, 10),
    "dense1.bias": (10,),
}
# The bits themselves: a change here changes every published result.
INITIAL = {
    "conv1.kernel": "2cab8a6102dcdc0cecca864387308c26353169335a5b480abd59a5262d013eb5",
    "dense1.kernel": "6f8462721bce4e1dadc1e46b20f8f6f0ab4749fbf43654f5e8e31b2fee5825bd",
}
RANDOMISED = "4e0a6a633e8f78a85bf39968419da0c5a9fa207d36fda8090475b2a62ad101dc"


@pytest.mark.parametrize("name", INITIAL)
def test_the_bits_are_pinned(name: str) -> None:
    assert weights.digest(weights.initialise({name: SHAPES[name]}, 0)) == INITIAL[name]


def test_the_randomised_bits_are_pinned() -> None:
    assert weights.digest(weights.randomise(SHAPES, 0)) == RANDOMISED


@pytest.mark.parametrize("make", [weights.initialise, weights.randomise], ids=["initial", "randomised"])
def test_shape_dtype_and_float32_values(make: Maker) -> None:
    arrays = make(SHAPES, 1)
    assert {name: array.shape for name, array in arrays.items()} == SHAPES
    assert list(arrays) == list(SHAPES)
    for array in arrays.values():
        assert array.dtype == np.float64
        assert np.array_equal(array, array.astype(np.float32))


@pytest.mark.parametrize("make", [weights.initialise, weights.randomise], ids=["initial", "randomised"])
def test_values_depend_on_name_and_seed_only(make: Maker) -> None:
    whole = make(SHAPES, 1)
    backwards = make(dict(reversed(SHAPES.items())), 1)
    other = make(SHAPES, 2)
    assert weights.digest(whole) == weights.digest(backwards)
    for name, shape in SHAPES.items():
        assert np.array_equal(make({name: shape}, 1)[name], whole[name])
        if name in INITIAL or make is weights.randomise:
            assert not np.array_equal(other[name], whole[name])
            renamed = make({f"other.{name}": shape}, 1)[f"other.{name}"]
            assert not np.array_equal(renamed, whole[name])


def test_values_do_not_depend_on_the_process() -> None:
    start = "weights.initialise({'conv1.kernel': (3, 3, 1, 32)}, 0)"
    code = f"from compare.data import weights; print(weights.digest({start}))"
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == INITIAL["conv1.kernel"]


def test_dense_kernels_are_glorot_uniform() -> None:
    kernel = weights.initialise({"a.kernel": (300, 100)}, 0)["a.kernel"]
    limit = np.sqrt(6 / 400)
    assert 0.999 * limit < np.abs(kernel).max() <= limit * (1 + 2**-24)
    assert np.std(kernel) == pytest.approx(limit / np.sqrt(3), rel=0.02)
    assert abs(np.mean(kernel)) < 0.02 * limit


def test_convolution_kernels_are_he_normal_by_fan_in() -> None:
    kernel = weights.initialise({"a.kernel": (3, 5, 16, 128)}, 0)["a.kernel"]
    deviation = np.sqrt(2 / (3 * 5 * 16))
    assert np.std(kernel) == pytest.approx(deviation, rel=0.02)
    assert np.mean(np.abs(kernel) < deviation) == pytest.approx(0.6827, abs=0.01)
    assert np.abs(kernel).max() > 3 * deviation


def test_the_rest_is_zeros_and_ones() -> None:
    arrays = weights.initialise(SHAPES, 0)
    for name in ("conv1.bias", "norm1.bias", "norm1.mean", "dense1.bias"):
        assert np.array_equal(arrays[name], np.zeros(SHAPES[name]))
    for name in ("norm1.scale", "norm1.var"):
        assert np.array_equal(arrays[name], np.ones(SHAPES[name]))


def test_randomised_keeps_kernels_and_moves_the_rest() -> None:
    shapes = SHAPES | dict.fromkeys(("n.scale", "n.bias", "n.mean", "n.var"), (2000,))
    fresh, drawn = weights.initialise(shapes, 3), weights.randomise(shapes, 3)
    for name in INITIAL:
        assert np.array_equal(fresh[name], drawn[name])
    scale, var = drawn["n.scale"], drawn["n.var"]
    assert np.abs(scale - 1).min() > 0.099
    assert np.abs(scale - 1).max() <= 0.5 + 1e-6
    assert 0.4 < np.mean(scale > 1) < 0.6
    assert np.std(drawn["n.bias"]) == pytest.approx(0.1, rel=0.1)
    assert np.std(drawn["n.mean"]) == pytest.approx(0.2, rel=0.1)
    assert 0.5 <= var.min() < 0.51
    assert 1.99 < var.max() <= 2
    assert len({weights.digest({"x": drawn[name]}) for name in drawn}) == len(drawn)


@pytest.mark.parametrize("make", [weights.initialise, weights.randomise], ids=["initial", "randomised"])
@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("conv1.weight", (3,), r"'conv1\.weight'; its last part may be kernel, bias, scale, gamma, mean, var"),
        ("kernels", (3, 3), r"'kernels'"),
        ("a.kernel", (3,), r"'a\.kernel' has shape \(3,\); allowed: \[inputs, outputs\]"),
        ("a.kernel", (3,) * 6, r"'a\.kernel' has shape \(3, 3, 3, 3, 3, 3\)"),
        ("a.kernel", (0, 3), r"'a\.kernel' has shape \(0, 3\)"),
        ("a.kernel", (), r"'a\.kernel' has shape \(\)"),
    ],
)
def test_what_has_no_initial_value_is_refused(make: Maker, name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        make({name: shape}, 0)


def test_the_digest_covers_names_and_values_in_any_order() -> None:
    one, two = np.ones(3), np.zeros(3)
    assert weights.digest({"a": one, "b": two}) == weights.digest({"b": two, "a": one})
    different = [{"a": one, "b": two}, {"a": two, "b": one}, {"a": one}, {"b": one}, {"ab": one}, {}]
    assert len({weights.digest(arrays) for arrays in different}) == len(different)
