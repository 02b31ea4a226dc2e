"""Traces of users' flax models."""

import pytest

from compare.base.trace import Layer
from tests.own import jax_pairs


def traced(factory: str) -> dict[str, Layer]:
    return {layer.path: layer for layer in jax_pairs.traced(jax_pairs.model(factory, (13, 13, 3))).layers}


@pytest.fixture(scope="module")
def kinds() -> dict[str, Layer]:
    return traced("kinds")


PLAIN = {"stride": [1, 1], "dilation": [1, 1], "padding_mode": "zeros", "groups": 1}
NORM = {"fast_variance": True}
KINDS = {
    "stem": ("convolution", PLAIN | {"kernel": [3, 3], "padding": [[1, 1], [1, 1]]}, {}),
    "grouped": (
        "convolution",
        PLAIN | {"kernel": [3, 3], "padding": [[1, 1], [1, 1]], "stride": [2, 2], "groups": 2},
        {"padding": "SAME"},
    ),
    "depthwise": (
        "convolution",
        PLAIN | {"kernel": [5, 5], "padding": [[4, 4], [2, 2]], "dilation": [2, 1], "groups": 8},
        {},
    ),
    "around": (
        "convolution",
        PLAIN | {"kernel": [3, 3], "padding": [[1, 1], [1, 1]], "padding_mode": "circular"},
        {"padding": "CIRCULAR"},
    ),
    "up": (
        "transposed-convolution",
        PLAIN | {"kernel": [3, 3], "padding": [[0, 1], [0, 1]], "stride": [2, 2], "output_padding": [0, 0]},
        {"padding": "SAME"},
    ),
    "up_again": (
        "transposed-convolution",
        PLAIN | {"kernel": [4, 4], "padding": [[1, 1], [1, 1]], "stride": [2, 2], "output_padding": [0, 0]},
        {"padding": [[2, 2], [2, 2]]},
    ),
    "group_norm": ("group-norm", NORM | {"epsilon": 1e-6, "groups": 3}, {}),
    "instance_norm": ("group-norm", NORM | {"epsilon": 1e-6, "groups": 6}, {}),
    "hidden": ("dense", {}, {}),
    "layer_norm": ("layer-norm", NORM | {"epsilon": 1e-5}, {}),
    "head": ("dense", {}, {}),
}


def test_every_kind_of_layer_has_its_role_and_torch_s_settings(kinds: dict[str, Layer]):
    assert {path: (each.role, each.settings, each.written) for path, each in kinds.items()} == KINDS


def test_variables_have_neutral_shapes_and_their_own_names(kinds: dict[str, Layer]):
    shapes = {path: {each.role: each.shape for each in layer.variables} for path, layer in kinds.items()}
    assert shapes["grouped"] == {"kernel": (3, 3, 4, 8)}
    assert shapes["depthwise"] == {"kernel": (5, 5, 1, 8), "bias": (8,)}
    assert shapes["up"] == {"kernel": (3, 3, 6, 8), "bias": (6,)}  # [H, W, 8, 6] in flax
    assert shapes["up_again"] == {"kernel": (4, 4, 6, 6)}
    assert shapes["hidden"] == {"kernel": (14 * 14 * 6, 16)}
    assert [each.own for each in kinds["stem"].variables] == ["params/stem/kernel", "params/stem/bias"]


def test_what_lies_between_layers_is_told_in_shared_words(kinds: dict[str, Layer]):
    assert {path: layer.between for path, layer in kinds.items() if layer.between} == {
        "grouped": ("relu",),
        "depthwise": ("gelu(exact)",),
        "around": ("gelu(exact)", "silu", "add"),
        "instance_norm": ("gelu(tanh)",),
        "hidden": ("average-pool([2, 2], [2, 2], [[0, 0], [0, 0]])", "reshape"),
    }
    assert kinds["around"].after == ("grouped", "depthwise")
    assert (kinds["stem"].after, kinds["head"].after) == (("",), ("layer_norm",))


def test_a_shortcut_is_seen_and_same_is_the_padding_that_it_comes_out_as():
    found = traced("resnet")
    shortcut, first = found["ResNetBlock_1/conv_proj"], found["ResNetBlock_1/Conv_0"]
    assert shortcut.after == first.after == ("bn_init", "ResNetBlock_0/BatchNorm_1")
    assert shortcut.between == ("relu", "max-pool([3, 3], [2, 2], [[1, 1], [1, 1]])", "add", "relu")
    assert (first.input, first.settings["padding"], first.written) == (
        (2, 4, 4, 4),
        [[0, 1], [0, 1]],
        {"padding": "SAME"},
    )
    assert found["Dense_0"].after == ("ResNetBlock_1/BatchNorm_1", "ResNetBlock_1/norm_proj")
    assert found["Dense_0"].between == ("add", "relu", "mean")


def test_batch_norm_s_momentum_is_torch_s_and_its_running_variance_biased():
    found = traced("nnx_net")
    first, second = found["layers/0/bn1"], found["layers/0/bn2"]
    shared = {"running_variance": "biased", "statistics": "batch"}
    assert first.settings == shared | {"epsilon": 1e-3, "momentum": 0.1, "fast_variance": True}
    assert second.settings == shared | {"epsilon": 1e-5, "momentum": 0.01, "fast_variance": False}
    assert (first.written, second.written) == ({"momentum": 0.9}, {"momentum": 0.99})
    assert [(each.role, each.is_parameter) for each in first.variables] == [
        ("scale", True),
        ("bias", True),
        ("mean", False),
        ("var", False),
    ]
    assert first.variables[0].own == "layers/0/bn1/scale"


def test_a_second_call_and_parameters_of_the_model_itself_are_layers_too():
    trace = jax_pairs.traced(jax_pairs.model("shared", (13, 13, 3)))
    found = {layer.path: layer for layer in trace.layers}
    assert list(found) == ["(model)", "conv", "conv#2", "kinds", "head"]
    assert found["conv#2"].variables == ()
    assert (found["conv#2"].after, found["conv#2"].between) == (("conv",), ("relu",))
    assert [(each.role, each.shape) for each in found["(model)"].variables] == [
        ("free", (1, 170, 3)),
        ("gamma", (4,)),
        ("gamma", (3,)),
    ]
    assert found["kinds"].variables[0].role == found["kinds"].role == "embedding"
    assert trace.unused == ("params/spare",)
    assert (trace.after, trace.output, trace.framework) == (("head",), (2, 5), "flax.linen")


@pytest.mark.parametrize("kind", ["stacked", "shared", "rematerialised"])
def test_layers_in_a_scan_are_in_a_loop(kind: str):
    found = jax_pairs.layers("looped", kind=kind).values()
    assert {layer.path.partition("/")[0] for layer in found if not layer.is_looped} == {"Conv_0", "Dense_0"}
    assert {layer.role for layer in found if layer.is_looped} == {"convolution", "batch-norm"}


@pytest.mark.parametrize("factory", ["kinds", "nnx_net"])
def test_dropout_is_listed_and_drops_nothing(factory: str):
    trace = jax_pairs.traced(jax_pairs.model(factory, (13, 13, 3)))
    assert trace.dropout == (f"dropout with p={0.3 if factory == 'kinds' else 0.5}",)
    assert len(trace.source_sha256) == 64


def test_the_twins_own_layers_are_known():
    found = traced("like_our_twins")
    assert found["norm"].settings == {
        "epsilon": 1e-5,
        "momentum": 0.1,
        "running_variance": "unbiased",
        "statistics": "batch",
        "fast_variance": False,
    }
    assert found["norm"].written == {}
    assert found["up"].settings["padding"] == [[0, 0], [0, 0]]
    assert found["up"].between == ("relu", "max-pool([2, 2], [2, 2], [[0, 0], [0, 0]])")
    assert found["scale"].role == "parameters"
    assert [(each.role, each.shape) for each in found["scale"].variables] == [("gamma", (6,))]
