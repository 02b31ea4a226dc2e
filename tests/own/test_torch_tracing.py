"""Traces of users' torch models: layers, and the functions between them."""

from pathlib import Path
from typing import Any

import pytest

from compare.base import trace
from compare.base.interface import Refused
from compare.base.trace import IMAGES, Layer, Trace
from tests.own import torch_pairs as pairs

SAME_WITH_EVEN_KERNEL = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")


def layers(found: Trace) -> dict[str, Layer]:
    return {layer.path: layer for layer in found.layers}


def write_model(folder: Path, body: str, factory: str = "make") -> Any:
    """Return the spec of a model written into a file."""
    file = folder / "model.py"
    file.write_text(f"import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n{body}")
    return pairs.model(factory, file=file)


def forward(folder: Path, *lines: str, layers: tuple[str, ...] = ()) -> Any:
    """Return the spec of a model with a convolution and a head, and what its forward does between them."""
    indent = "\n        "
    made = indent.join(("self.conv = nn.Conv2d(3, 4, 3)", "self.head = nn.Linear(4, 5)", *layers))
    called = indent.join(("x = self.conv(x)", *lines))
    return write_model(
        folder,
        "class Model(nn.Module):\n"
        f"    def __init__(self):\n        super().__init__(){indent}{made}\n"
        f"    def forward(self, x):{indent}{called}\n"
        "def make():\n    return Model()\n",
    )


def test_a_trace_crosses_as_json():
    found = pairs.traced(pairs.model("resnet"))
    assert trace.from_json(found.to_json()) == found
    assert found.framework == "torch"
    assert len(found.source_sha256) == 64


def test_shortcuts_come_after_every_layer_that_reaches_them():
    found = pairs.traced(pairs.model("resnet", size=9))
    of = layers(found)
    assert list(of)[:4] == ["stem.0", "stem.1", "layers.0.conv1", "layers.0.bn1"]
    assert of["stem.0"].after == (IMAGES,)
    assert of["layers.0.conv1"].after == ("stem.1",)
    assert of["layers.0.conv1"].between == ("relu", "max-pool([3, 3], [2, 2], [[1, 1], [1, 1]])")
    assert of["layers.2.shortcut.0"].after == ("stem.1", "layers.0.bn2", "layers.1.bn2")
    assert of["layers.3.conv1"].after == ("layers.2.bn2", "layers.2.shortcut.1")
    assert of["layers.3.conv1"].between == ("add", "relu")
    assert of["fc"].between == ("add", "relu", "add", "relu", "mean")
    assert of["layers.2.conv1"].input == (3, 5, 5, 4)
    assert of["layers.2.conv1"].output == (3, 3, 3, 6)
    assert (found.output, found.after, found.between, found.unused) == ((3, 5), ("fc",), (), ())


def test_variables_are_neutral():
    of = layers(pairs.traced(pairs.model("mixed", size=9)))
    shapes = {path: [(each.own, each.role, each.shape) for each in layer.variables] for path, layer in of.items()}
    assert shapes["grouped"] == [("grouped.weight", "kernel", (3, 3, 1, 6)), ("grouped.bias", "bias", (6,))]
    assert shapes["depthwise"][0] == ("depthwise.weight", "kernel", (5, 5, 1, 6))
    assert shapes["up"][0] == ("up.weight", "kernel", (3, 3, 4, 8))
    assert shapes["expand"][0] == ("expand.weight", "kernel", (6, 8))
    assert shapes["layer_norm"] == [("layer_norm.weight", "scale", (6,)), ("layer_norm.bias", "bias", (6,))]
    assert [layer.role for layer in of.values()] == [
        "convolution",
        "group-norm",
        "convolution",
        "layer-norm",
        "dense",
        "transposed-convolution",
        "dense",
    ]
    norm = layers(pairs.traced(pairs.model("resnet")))["stem.1"]
    assert [(each.role, each.is_parameter) for each in norm.variables] == [
        ("scale", True),
        ("bias", True),
        ("mean", False),
        ("var", False),
    ]


def test_settings_are_those_that_decide_the_arithmetic():
    of = layers(pairs.traced(pairs.model("mixed", size=9)))
    assert of["up"].settings == {
        "kernel": [3, 3],
        "stride": [2, 2],
        "padding": [[1, 1], [1, 1]],
        "dilation": [1, 1],
        "groups": 1,
        "padding_mode": "zeros",
        "output_padding": [1, 1],
    }
    assert of["grouped"].settings["groups"] == 3
    assert of["norm"].settings == {"groups": 2, "epsilon": 1e-5, "fast_variance": False}
    assert of["layer_norm"].settings == {"epsilon": 1e-6, "fast_variance": False}
    assert layers(pairs.traced(pairs.model("resnet")))["stem.1"].settings == {
        "epsilon": 1e-5,
        "momentum": 0.1,
        "running_variance": "unbiased",
        "statistics": "batch",
        "fast_variance": False,
    }


def test_a_list_of_parameters_is_the_module_s_that_has_it():
    found = pairs.traced(pairs.model("unusual"))
    of = layers(found)
    assert [(each.own, each.shape) for each in of["(model)"].variables] == [("scales.0", (4,)), ("scales.1", (4,))]
    assert of["head"].between == ("mean", "multiply", "multiply")
    assert [each.shape for each in of["norm"].variables] == [(8, 8, 4), (8, 8, 4)]
    assert found.unused == ()


@SAME_WITH_EVEN_KERNEL
def test_same_padding_is_told_in_pixels_and_as_written():
    found = pairs.traced(pairs.model("flattened"))
    assert layers(found)["conv"].settings["padding"] == [[1, 1], [0, 1]]
    assert layers(found)["conv"].written == {"padding": "same"}
    assert layers(found)["hidden"].between == (
        "gelu(tanh)",
        "max-pool([2, 2], [2, 2], [[0, 0], [0, 0]])",
        "reshape",
    )
    assert found.dropout == ("dropout with p=0.5",)
    assert layers(found)["out"].between == ("relu",)


def test_layers_of_the_other_memory_order_and_their_functions():
    of = layers(pairs.traced(pairs.model("mixed", size=9)))
    assert of["layer_norm"].input == of["expand"].input == (3, 5, 5, 6)
    assert of["up"].input == (3, 5, 5, 8)
    assert of["layer_norm"].between == ()
    assert of["up"].between == ("gelu(exact)",)
    assert of["head"].after == ("norm", "up")
    assert of["head"].between == ("silu", "relu6", "slice", "concatenate", "mean")


def test_second_calls_own_parameters_and_shared_weights():
    found = pairs.traced(pairs.model("recurring"))
    of = layers(found)
    assert of["again#2"].variables == ()
    assert (of["again#2"].after, of["again#2"].between) == (("again",), ("relu",))
    assert of["block"].role == "parameters"
    assert [(each.own, each.role, each.shape) for each in of["block"].variables] == [("block.gamma", "gamma", (4,))]
    assert of["again"].after == ("block",)
    assert of["block.norm"].output == (3, 8, 8, 4)
    assert "head" not in of  # a dense layer with the weight of an embedding
    assert found.reused == ("prototypes.weight",)
    assert found.unused == ("head.weight", "spare.weight", "spare.bias")
    assert "head.weight is the same tensor as prototypes.weight" in found.notes
    assert "block.norm is a LayerNorm2d, and its forward is not that of torch's LayerNorm" in found.notes


POOLED = "x = F.adaptive_avg_pool2d(x, 1).flatten(1)"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("x = x.mean((2, 3))",), ("mean",)),
        ((POOLED,), ("mean",)),
        (("x = F.avg_pool2d(x, x.shape[2:])[:, :, 0, 0]",), ("mean",)),
        (("x = nn.functional.avg_pool2d(x, 2)", POOLED), ("average-pool([2, 2], [2, 2], [[0, 0], [0, 0]])", "mean")),
        (
            ("x = F.max_pool2d(x, 3, 2, ceil_mode=True)", POOLED),
            ("max-pool([3, 3], [2, 2], [[0, 1], [0, 1]])", "mean"),
        ),
        (("x = x.clamp(min=0)", POOLED), ("relu", "mean")),
        (("x = nn.Hardtanh(0, 6)(x)", POOLED), ("relu6", "mean")),
        (("x = x * torch.sigmoid(x)", POOLED), ("sigmoid", "multiply", "mean")),
        (("x += 1", POOLED), ("add", "mean")),
        (("x = F.logsigmoid(x)", POOLED), ("logsigmoid", "mean")),
        (("x = F.interpolate(x, scale_factor=2)", POOLED), ("interpolate", "mean")),
        (("x = x.permute(0, 2, 3, 1).contiguous().mean(dim=(1, 2))",), ("mean",)),
        (("x = x.transpose(2, 3)", POOLED), ("transpose", "mean")),
    ],
)
def test_functions_have_words_that_both_frameworks_share(
    tmp_path: Path, lines: tuple[str, ...], words: tuple[str, ...]
):
    found = pairs.traced(forward(tmp_path, *lines, "return self.head(x)"))
    assert layers(found)["head"].between == words
    assert layers(found)["head"].after == ("conv",)


HIDDEN = {
    "autograd": (
        "class Swish(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return x * torch.sigmoid(x)\n"
        "    @staticmethod\n    def backward(ctx, gradient):\n        return gradient\n\n"
        "swish = Swish.apply\n\n"
    ),
    "script": "@torch.jit.script\ndef swish(x):\n    return x * torch.sigmoid(x)\n\n",
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", HIDDEN)
def test_what_a_function_hides_from_torch_is_followed_all_the_same(tmp_path: Path, kind: str):
    spec = forward(tmp_path, "x = swish(x).mean((2, 3))", "return self.head(x)")
    file = tmp_path / "model.py"
    file.write_text(file.read_text().replace("class Model", f"{HIDDEN[kind]}class Model"))
    assert layers(pairs.traced(spec))["head"].after == ("conv",)


def test_the_models_own_parameters_are_a_layer_under_a_name(tmp_path: Path):
    layer = "self.offset = nn.Parameter(torch.zeros(1, 4))"
    found = pairs.traced(forward(tmp_path, "return self.head(x.mean((2, 3)) + self.offset)", layers=(layer,)))
    assert [(layer.path, layer.after) for layer in found.layers] == [
        ("(model)", (IMAGES,)),
        ("conv", (IMAGES,)),
        ("head", ("conv",)),
    ]
    assert [each.own for each in found.layers[0].variables] == ["offset"]
    assert found.after == ("head",)


def test_a_frozen_norm_uses_its_running_statistics(tmp_path: Path):
    norm = ("self.norm = nn.BatchNorm2d(4, momentum=None)", "self.frozen = nn.BatchNorm2d(4)")
    lines = ("self.frozen.eval()", "x = self.frozen(self.norm(x))", POOLED, "return self.head(x)")
    of = layers(pairs.traced(forward(tmp_path, *lines, layers=norm)))
    assert of["norm"].settings["momentum"] is None
    assert [of[name].settings["statistics"] for name in ("norm", "frozen")] == ["batch", "running"]


def test_a_tensor_that_gives_its_shape_alone_is_no_origin(tmp_path: Path):
    lines = ("y = self.other(x)", "y = y.reshape_as(x) + x.new_zeros(1)", "return self.head(y.mean((2, 3)))")
    of = layers(pairs.traced(forward(tmp_path, *lines, layers=("self.other = nn.Conv2d(4, 4, 1)",))))
    assert of["head"].after == ("other",)


RETURN = "return self.head(x.mean((2, 3)))"


@pytest.mark.parametrize(
    ("lines", "made", "reason"),
    [
        (("return 'logits'",), (), "the model returns a str; allowed: arrays, and tuples, dictionaries or dataclasses"),
        (("return None",), (), "the model returns no tensor"),
        (("x = torch.dropout(x, 0.3, self.training)", RETURN), (), r"calls torch.nn.functional.dropout with p=0.3"),
        (("x = x + torch.randn_like(x)", RETURN), (), r"draws random numbers in training \(randn_like\)"),
        (("x = x @ torch.ones(2, 2)", RETURN), (), "raised RuntimeError in the model's forward"),
        (
            ("x, _ = self.attention(*[x.flatten(2).transpose(1, 2)] * 3)", "return self.head(x.mean(1))"),
            ("self.attention = nn.MultiheadAttention(4, 1, batch_first=True, add_bias_kv=True)",),
            r"'attention' is a torch.nn.MultiheadAttention with add_bias_kv",
        ),
        (
            ("return x.mean((2, 3)) @ self.head.weight.T",),
            (),
            r"'head.weight' is used although 'head' is never called \(Linear\)",
        ),
        (
            ("x = self.recurrent(x.flatten(2).transpose(1, 2))", RETURN),
            ("self.recurrent = nn.GRU(4, 4)",),
            r"'recurrent' is a torch.nn.GRU, and samestep matches no recurrent layers",
        ),
        (
            (RETURN,),
            ("self.head = nn.utils.parametrizations.weight_norm(self.head, dim=1)",),
            r"the parameters of 'head' are computed from others \(weight_norm\)",
        ),
        (
            (RETURN,),
            ("self.head = nn.utils.parametrizations.spectral_norm(self.head)",),
            r"the parameters of 'head' are computed from others \(spectral_norm\)",
        ),
        ((RETURN,), ("self.lazy = nn.LazyLinear(3)",), "'lazy.weight' is lazy"),
        ((RETURN,), ("self.head = nn.utils.weight_norm(self.head, dim=1)",), "has a torch.nn.utils WeightNorm"),
        (
            (RETURN,),
            ("self.conv.weight.data[0, 0, 0, 0] = float('nan')",),
            "'conv.weight' contains NaN or infinity",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning", "ignore:`torch.nn.utils.weight_norm")
def test_what_cannot_be_compared_is_refused_by_name(
    tmp_path: Path, lines: tuple[str, ...], made: tuple[str, ...], reason: str
):
    with pytest.raises(Refused, match=reason):
        pairs.traced(forward(tmp_path, *lines, layers=made))


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("[1, 2]", r"returns a builtins.list; allowed: a factory that returns a torch.nn.Module"),
        ("nn.Linear", "returns the class Linear, not a model made of it"),
        ("torch.compile(nn.Linear(2, 2))", "returns a OptimizedModule; allowed: the model as it is"),
        ("torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))", "returns a TopLevelTracedModule"),
        ("nn.DataParallel(nn.Linear(2, 2))", "returns a DataParallel"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_factory_must_return_a_plain_module(tmp_path: Path, returned: str, reason: str):
    with pytest.raises(Refused, match=reason):
        pairs.traced(write_model(tmp_path, f"def make():\n    return {returned}\n"))
