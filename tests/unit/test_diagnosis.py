"""Advice on matched layers that differ: the cause by name, and what to write in either framework."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import jax as jax_package
import pytest
from flax import linen
from torch.nn import functional

from compare.base.trace import Layer
from compare.user_models import code_suggestions
from compare.user_models.diagnosis import Advice, advise, find_differences, list_settings
from compare.user_models.matching import match
from tests.unit.traces import batch_norm, convolution, dense, jax, renamed, torch

CONVOLUTION = {
    "kernel": [3, 3],
    "stride": [2, 2],
    "padding": [[1, 1], [1, 1]],
    "dilation": [1, 1],
    "groups": 1,
    "padding_mode": "zeros",
}
NORM = {"epsilon": 1e-5, "momentum": 0.1, "running_variance": "unbiased", "statistics": "batch", "fast_variance": False}


def _layer(role: str, settings: Mapping[str, Any], between: Sequence[str] = (), written: Any = None) -> Layer:
    return Layer("x", role, (), settings, (2, 8, 8, 4), (2, 4, 4, 4), ("",), tuple(between), written or {})


def _convolution(*, written: Any = None, role: str = "convolution", **changes: Any) -> Layer:
    return _layer(role, CONVOLUTION | changes, written=written)


def _norm(*, written: Any = None, role: str = "batch-norm", **changes: Any) -> Layer:
    return _layer(role, NORM | changes, written=written)


def _only(torch_layer: Layer, jax_layer: Layer) -> Advice:
    found = advise(torch_layer, jax_layer)
    assert len(found) == 1
    return found[0]


def test_layers_that_are_alike_need_no_advice() -> None:
    as_tuples = _convolution(kernel=(3, 3), padding=((1, 1), (1, 1)), written={"padding": [[1, 1], [1, 1]]})
    assert advise(_convolution(), as_tuples) == []
    assert not any(row.differs for row in list_settings(_convolution(), as_tuples))


def test_constant_factors_are_compared_where_all_else_is_alike() -> None:
    halved, doubled = ("multiply by 0.5", "softmax", "reshape"), ("softmax", "multiply by 4", "multiply by 0.5")
    found = _only(_layer("dense", {}, halved), _layer("dense", {}, doubled))
    assert found.cause == "torch multiplies by 0.5, flax by 2"
    assert (found.flax, found.torch) == (None, None)
    assert advise(_layer("dense", {}, halved), _layer("dense", {}, (*doubled, "multiply by 0.25"))) == []
    assert advise(_layer("dense", {}, ("sum", "multiply by 0.25")), _layer("dense", {}, ("mean",))) == []
    assert "torch has softmax" in _only(_layer("dense", {}, halved), _layer("dense", {}, ("multiply by 2",))).cause


def test_same_padding_is_told_with_both_remedies() -> None:
    found = _only(_convolution(), _convolution(padding=[[0, 1], [0, 1]], written={"padding": "SAME"}))
    assert found.cause.startswith("SAME pads a 3x3 kernel of stride 2x2 by ((0, 1), (0, 1)) here")
    assert found.flax == "padding=((1, 1), (1, 1))"
    assert found.torch == "padding=0 and F.pad(x, (0, 1, 0, 1)) before it"
    assert not found.is_harmless
    rows = {
        row.setting: row
        for row in list_settings(_convolution(), _convolution(padding=[[0, 1], [0, 1]], written={"padding": "SAME"}))
    }
    assert rows["padding"].jax == "((0, 1), (0, 1)) (written SAME)"
    assert [name for name, row in rows.items() if row.differs] == ["padding"]


@pytest.mark.parametrize(
    ("setting", "in_torch", "in_flax", "flax", "torch"),
    [
        ("padding", [[1, 1], [2, 2]], [[3, 3], [3, 3]], "padding=((1, 1), (2, 2))", "padding=3"),
        ("padding", [[1, 1], [1, 1]], [[1, 1], [0, 0]], "padding=((1, 1), (1, 1))", "padding=(1, 0)"),
        (
            "padding",
            [[1, 1], [1, 1]],
            [[1, 2], [3, 4]],
            "padding=((1, 1), (1, 1))",
            "padding=0 and F.pad(x, (3, 4, 1, 2)) before it",
        ),
        ("stride", [1, 1], [2, 1], "strides=(1, 1)", "stride=(2, 1)"),
        ("dilation", [2, 2], [1, 1], "kernel_dilation=(2, 2)", "dilation=1"),
        ("groups", 4, 1, "feature_group_count=4", "groups=1"),
        ("padding_mode", "zeros", "circular", "padding=((1, 1), (1, 1))", 'padding_mode="circular"'),
        ("padding_mode", "reflect", "zeros", 'padding="REFLECT"', 'padding_mode="zeros"'),
        ("padding_mode", "replicate", "zeros", None, 'padding_mode="zeros"'),
    ],
)
def test_settings_of_a_convolution(setting: str, in_torch: Any, in_flax: Any, flax: str, torch: str) -> None:
    found = _only(_convolution(**{setting: in_torch}), _convolution(**{setting: in_flax}))
    assert (found.setting, found.flax, found.torch) == (setting, flax, torch)


def test_what_has_no_effect_does_not_differ() -> None:
    none = [[0, 0], [0, 0]]
    assert advise(_convolution(padding=none, padding_mode="reflect"), _convolution(padding=none)) == []
    assert advise(_convolution(kernel=[1, 1], dilation=[2, 2]), _convolution(kernel=[1, 1])) == []


def test_padding_of_a_transposed_convolution_is_told_in_flaxs_own_count() -> None:
    def transposed(**changes: Any) -> Layer:
        return _convolution(role="transposed-convolution", output_padding=[0, 0], **changes)

    found = _only(transposed(kernel=[4, 4]), transposed(kernel=[4, 4], padding=[[1, 2], [1, 2]]))
    assert found.flax == "padding=((2, 2), (2, 2))"
    wide = _convolution(role="transposed-convolution", output_padding=[1, 1])
    assert _only(wide, transposed(padding=[[1, 1], [1, 1]])).flax == "padding=((1, 2), (1, 2))"


@pytest.mark.parametrize(
    ("setting", "in_torch", "in_flax", "flax", "torch"),
    [
        ("epsilon", 1e-5, 1e-6, "epsilon=1e-5", "eps=1e-6"),
        ("epsilon", 1e-3, 1e-5, "epsilon=0.001", "eps=1e-5"),
        ("momentum", 0.1, 0.01, "momentum=0.9", "momentum=0.01"),
        ("momentum", 0.01, 0.1, "momentum=0.99", "momentum=0.1"),
        ("momentum", None, 0.1, None, "momentum=0.1"),
        ("statistics", "batch", "running", "use_running_average=False", "eval() on this layer"),
        ("fast_variance", False, True, "use_fast_variance=False", None),
        ("running_variance", "unbiased", "biased", None, None),
    ],
)
def test_settings_of_a_norm(setting: str, in_torch: Any, in_flax: Any, flax: str | None, torch: str | None) -> None:
    found = _only(_norm(**{setting: in_torch}), _norm(**{setting: in_flax}))
    assert (found.setting, found.flax, found.torch) == (setting, flax, torch)
    assert found.is_harmless == (setting in ("fast_variance", "running_variance"))


def test_momentum_is_told_in_both_conventions() -> None:
    found = _only(_norm(), _norm(momentum=0.01, written={"momentum": 0.99}))
    assert "torch's 0.1 is flax's 0.9, and flax has 0.99" in found.cause
    assert found.sentence.endswith("equal with momentum=0.9 in flax, or momentum=0.01 in torch")
    carried = _only(_norm(), _norm(momentum=0.9, written={"momentum": 0.1}))
    assert "flax has 0.1 (the same number was copied)" in carried.cause
    assert "copied" not in found.cause


def test_rounding_does_not_make_settings_differ() -> None:
    assert advise(_norm(momentum=0.1), _norm(momentum=1 - 0.9)) == []


def test_harmless_advice_comes_last() -> None:
    found = advise(_norm(), _norm(fast_variance=True, epsilon=1e-3, running_variance="biased"))
    assert [each.setting for each in found] == ["epsilon", "running_variance", "fast_variance"]


def test_groups_of_a_group_norm_have_another_name() -> None:
    found = _only(_layer("group-norm", {"groups": 8}), _layer("group-norm", {"groups": 32}))
    assert (found.flax, found.torch) == ("num_groups=8", "num_groups=32")


@pytest.mark.parametrize(
    ("in_torch", "in_flax", "flax", "torch"),
    [
        (["gelu(exact)"], ["gelu(tanh)"], "nn.gelu(x, approximate=False)", 'F.gelu(x, approximate="tanh")'),
        (["gelu(tanh)"], ["gelu(exact)"], "nn.gelu(x, approximate=True)", 'F.gelu(x, approximate="none")'),
        (["relu", "add"], ["add"], "nn.relu(x)", None),
        (["add"], ["add", "relu", "reshape"], None, "F.relu(x)"),
        (["relu", "relu"], ["relu"], "nn.relu(x)", None),
        (["relu"], ["silu"], "nn.relu(x)", "F.silu(x)"),
        (["leaky-relu"], ["relu"], "nn.leaky_relu(x, SLOPE)", "F.relu(x)"),
        (
            ["relu", "max-pool([3, 3], [2, 2], [[1, 1], [1, 1]])"],
            ["relu", "max-pool(3x3, 2x2, ((0, 1), (0, 1)))"],
            "nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))",
            'nn.MaxPool2d(3, stride=2) of F.pad(x, (0, 1, 0, 1), value=float("-inf"))',
        ),
        (
            ["average-pool([3, 3], [2, 2], [[1, 1], [1, 1]])"],
            ["average-pool(2x2, 2x2, 0x0)"],
            "nn.avg_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))",
            "nn.AvgPool2d(2, stride=2, padding=0)",
        ),
        (
            ["average-pool(2x2, 2x2, 0x0)", "average-pool(4x4, 4x4, 0x0)"],
            ["mean"],
            "nn.avg_pool(x, (2, 2), strides=(2, 2), padding=((0, 0), (0, 0)))",
            None,
        ),
        (["mean"], ["average-pool(2x2, 2x2, 0x0)", "mean"], None, "nn.AvgPool2d(2, stride=2, padding=0)"),
    ],
)
def test_functions_before_a_layer(in_torch: list, in_flax: list, flax: str | None, torch: str | None) -> None:
    found = _only(_layer("dense", {}, in_torch), _layer("dense", {}, in_flax))
    assert (found.setting, found.flax, found.torch) == ("before it", flax, torch)
    assert list_settings(_layer("dense", {}, in_torch), _layer("dense", {}, in_flax))[-1].differs


@pytest.mark.parametrize(
    ("in_torch", "in_flax"),
    [
        (["relu", "reshape"], ["transpose", "relu", "broadcast"]),
        (["max-pool([3, 3], [2, 2], [[1, 1], [1, 1]])"], ["max-pool(3x3, 2x2, 1x1)"]),
        (["mean"], ["average-pool(7x7, 7x7, 0x0)"]),
        (["average-pool([8, 8], [8, 8], [[0, 0], [0, 0]])"], ["mean"]),
        (["relu", "add"], ["add", "relu"]),
    ],
)
def test_what_is_only_written_differently_is_no_difference(in_torch: list, in_flax: list) -> None:
    assert advise(_layer("dense", {}, in_torch), _layer("dense", {}, in_flax)) == []


def test_all_differences_of_a_matching_come_in_execution_order() -> None:
    layers = [
        convolution("c", (3, 3, 3, 8), [""], **CONVOLUTION),
        batch_norm("n", 8, ["c"], **NORM),
        dense("fc", (8, 10), ["n"]),
    ]
    changed = [
        layers[0],
        renamed(layers[1], settings=NORM | {"running_variance": "biased"}),
        renamed(layers[2], between=("relu",)),
    ]
    found = find_differences(match(torch(*layers), jax(*changed, between=("softmax",))))
    assert [(each.torch, each.jax, each.is_harmless) for each in found] == [
        ("n", "N_0", True),
        ("fc", "Fc_0", False),
        ("logits", "logits", False),
    ]
    assert found[2].advice[0].sentence == "flax has softmax, torch has none; equal with F.softmax(x, AXIS) in torch"
    assert find_differences(match(torch(*layers), jax(*layers))) == []


WORDS = (
    *("relu", "relu6", "leaky-relu", "elu", "selu", "celu", "silu", "mish", "gelu(tanh)", "sigmoid", "logsigmoid"),
    *("tanh", "softplus", "softmax", "log_softmax", "hardswish", "hardsigmoid", "hardtanh"),
)


@pytest.mark.parametrize("word", WORDS)
def test_functions_that_advice_names_are_there_and_differ_where_one_side_has_none(word: str):
    spelled = code_suggestions.write_function_in_flax(word), code_suggestions.write_function_in_torch(word)
    homes: Any = {"nn": linen, "jax": jax_package, "F": functional}
    for code, rest in (each.split("(", 1) for each in spelled):
        first, *names = code.split(".")
        assert callable(reduce(getattr, names, homes[first])), code
        assert rest.startswith("x")
    norm = _norm()
    (found,) = advise(norm, replace(norm, between=(word,)))
    assert found.cause == f"flax has {word}, torch has none"
    assert not advise(replace(norm, between=(word,)), replace(norm, between=(word,)))
