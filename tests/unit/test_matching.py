"""Matching by order, role and shape: what is found, what a map settles, and what is refused."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.interface import Refused
from compare.pairing.matching import Matching, match
from compare.pairing.trace import Trace
from tests.unit.traces import again, batch_norm, both, convolution, dense, flax_path, jax, parameters, renamed, torch


def _block(name: str, before: Sequence[str], width: int, *, shortcut: bool) -> list:
    """A basic residual block; what comes after it comes after NAME.bn2 and the shortcut."""
    layers = [
        convolution(f"{name}.conv1", (3, 3, width // 2 if shortcut else width, width), before),
        batch_norm(f"{name}.bn1", width, [f"{name}.conv1"]),
        convolution(f"{name}.conv2", (3, 3, width, width), [f"{name}.bn1"]),
        batch_norm(f"{name}.bn2", width, [f"{name}.conv2"]),
    ]
    if shortcut:
        layers += [
            convolution(f"{name}.short", (1, 1, width // 2, width), before),
            batch_norm(f"{name}.shortbn", width, [f"{name}.short"]),
        ]
    return layers


def _resnet(blocks: int = 3) -> list:
    layers = [convolution("stem", (3, 3, 3, 8), [""]), batch_norm("stembn", 8, ["stem"])]
    before: list[str] = ["stembn"]
    for index in range(blocks):
        shortcut = index == 1
        layers += _block(f"b{index}", before, 8 if index < 1 else 16, shortcut=shortcut)
        before = [f"b{index}.bn2", *([f"b{index}.shortbn"] if shortcut else before)]
    return [*layers, dense("fc", (16, 10), before)]


def _without(layers: list, name: str) -> list:
    """The same model without one layer: what came after it comes after what it came after."""
    gone = next(each for each in layers if each.name == name)
    return [
        renamed(each, after=tuple(p for path in each.after for p in (gone.after if path == name else (path,))))
        for each in layers
        if each.name != name
    ]


def _shortcut_first(layers: list) -> list:
    short = [each for each in layers if ".short" in each.name]
    rest = [each for each in layers if each not in short]
    at = next(index for index, each in enumerate(rest) if each.name == "b1.conv1")
    return rest[:at] + short + rest[at:]


def _is_by_name(found: Matching, a: Trace) -> bool:
    assert [t.path for t, _ in found.layers] == [each.path for each in a.layers]
    return all(j.path == flax_path(t.path) for t, j in found.layers)


def _refused(a: Trace, b: Trace, **more: dict) -> str:
    with pytest.raises(Refused) as caught:
        match(a, b, **more)
    text = str(caught.value)
    lines = text.splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 100 for line in lines[1:-1])
    return text


def test_the_same_model_matches_layer_by_layer() -> None:
    a, b = both(*_resnet())
    found = match(a, b)
    assert _is_by_name(found, a)
    assert found.remarks == ()
    assert found.to_map()["b1.shortbn.running_var"] == "batch_stats/B1_0/Shortbn_0/var"
    assert len(found.to_map()) == sum(len(layer.variables) for layer in a.layers)


def test_another_order_of_execution_matches_by_what_comes_before() -> None:
    a, b = torch(*_resnet()), jax(*_shortcut_first(_resnet()))
    assert [each.path for each in b.layers] != [flax_path(each.path) for each in a.layers]
    assert _is_by_name(match(a, b), a)


@given(st.integers(1, 12), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_branches_match_in_any_order_of_execution(count: int, random) -> None:
    branches = [
        [
            convolution(f"a{index}", (1, 1, 4, 6), ["stem"]),  # alike, but for what lies ahead
            convolution(f"m{index}", (3, 3, 6, 6), [f"a{index}"]),
            convolution(f"z{index}", (3, 3, 6, 7 + index), [f"m{index}"]),
        ]
        for index in range(count)
    ]
    ends = [f"z{index}" for index in range(count)]
    stem, last = convolution("stem", (3, 3, 3, 4), [""]), dense("fc", (9, 10), ends)
    a = torch(stem, *[each for branch in branches for each in branch], last)
    waiting = [list(branch) for branch in branches]
    mixed = []
    while any(waiting):
        mixed.append(random.choice([branch for branch in waiting if branch]).pop(0))
    assert _is_by_name(match(a, jax(stem, *mixed, last)), a)


def test_settings_tell_branches_apart_even_where_one_is_wrong() -> None:
    def pyramid(rates: Sequence[int], order: Sequence[int]) -> list:
        branches = [
            convolution(f"d{index}", (3, 3, 4, 4), [""], dilation=[rate, rate]) for index, rate in enumerate(rates)
        ]
        return [*(branches[index] for index in order), dense("fc", (12, 10), ["d0", "d1", "d2"])]

    a = torch(*pyramid((6, 12, 18), (0, 1, 2)))
    assert _is_by_name(match(a, jax(*pyramid((6, 12, 24), (2, 1, 0)))), a)


def test_what_lies_ahead_tells_apart_although_something_differs_further_on() -> None:
    layers = [
        convolution("a", (1, 1, 3, 4), [""]),
        convolution("b", (3, 3, 4, 4), ["a"]),
        convolution("c", (1, 1, 3, 4), [""]),
        convolution("d", (5, 5, 4, 4), ["c"]),
        batch_norm("n", 8, ["b", "d"]),
        dense("fc", (8, 10), ["n"]),
    ]
    swapped = [layers[index] for index in (2, 3, 0, 1, 4, 5)]
    text = _refused(torch(*layers), jax(*_without(swapped, "n")))
    assert text.startswith("incomplete: flax lacks a layer like torch's n (batch-norm 8); 4 layers match before")


@pytest.mark.parametrize("name", ["stembn", "b0.bn1", "b1.conv2", "b1.shortbn", "b2.bn2"])
def test_a_missing_layer_is_named_on_either_side(name: str) -> None:
    whole, less = _resnet(), _without(_resnet(), name)
    place = [each.name for each in whole].index(name)
    text = _refused(torch(*whole), jax(*less))
    assert text.startswith(f"incomplete: flax lacks a layer like torch's {name} (")
    assert f"; {place} layer{'s' if place > 1 else ''} match" in text
    assert "a map cannot make up for it" in text
    assert f"incomplete: torch lacks a layer like flax's {flax_path(name)} (" in _refused(torch(*less), jax(*whole))


def test_several_missing_layers_are_counted() -> None:
    whole = _resnet()
    less = _without(_without(whole, "b1.conv2"), "b1.bn2")
    assert "flax lacks a layer like torch's b1.conv2 (convolution 3x3x16x16) and 1 after it;" in _refused(
        torch(*whole), jax(*less)
    )


def test_a_layer_too_many_at_the_end_is_named() -> None:
    layers = [*_resnet(), dense("extra", (10, 10), ["fc"])]
    assert "flax lacks a layer like torch's extra (dense 10x10+b)" in _refused(torch(*layers), jax(*_resnet()))
    assert "torch lacks a layer like flax's Extra_0 (dense 10x10+b)" in _refused(torch(*_resnet()), jax(*layers))


def test_a_missing_bias_is_told_from_a_missing_layer() -> None:
    layers = _resnet()
    with_bias = [
        convolution("b1.conv2", (3, 3, 16, 16), ["b1.bn1"], bias=True) if e.name == "b1.conv2" else e for e in layers
    ]
    text = _refused(torch(*with_bias), jax(*layers))
    assert "a missing bias, which torch has and flax has not: torch's b1.conv2 (convolution 3x3x16x16+b)" in text
    assert "which flax has and torch has not" in _refused(torch(*layers), jax(*with_bias))


def test_another_shape_is_named() -> None:
    layers = _resnet()
    wide = [convolution("b1.conv2", (5, 5, 16, 16), ["b1.bn1"]) if e.name == "b1.conv2" else e for e in layers]
    text = _refused(torch(*layers), jax(*wide))
    assert "another shape of kernel, 3x3x16x16 in torch and 5x5x16x16 in flax" in text
    row = next(line for line in text.splitlines() if line.startswith(">"))
    assert "b1.conv2" in row
    assert flax_path("b1.conv2") in row


def test_another_role_is_named() -> None:
    layers = _resnet()
    other = [
        renamed(e, role="layer-norm", shapes={"scale": (8,), "bias": (8,)}) if e.name == "stembn" else e for e in layers
    ]
    assert "torch has stembn (batch-norm 8) where flax has Stembn_0 (layer-norm 8)" in _refused(
        torch(*layers), jax(*other)
    )


def _attention() -> list:
    three = [dense(name, (4, 4), ["norm"]) for name in ("query", "key", "value")]
    norm = renamed(batch_norm("norm", 4, [""]), role="layer-norm", shapes={"scale": (4,), "bias": (4,)})
    return [norm, *three, dense("fc", (4, 10), ["query", "key", "value"])]


def test_ambiguous_layers_are_refused_and_a_map_settles_them() -> None:
    a, b = both(*_attention())
    text = _refused(a, b)
    assert text.startswith("ambiguous: torch's query, key, value and flax's Query_0, Key_0, Value_0")
    assert "1 layer matches before" in text
    assert "'params/Key_0/kernel'" in text
    part = {"query.weight": "params/Query_0/kernel", "key.weight": "params/Value_0/kernel"}
    found = match(a, b, part).to_map()
    assert found["key.bias"] == "params/Value_0/bias"
    assert found["value.weight"] == "params/Key_0/kernel"
    assert match(a, b, found).to_map() == found
    assert "ambiguous: torch's key, value" in _refused(a, b, given={"query.weight": "params/Query_0/kernel"})


def test_one_of_several_alike_that_is_missing_is_ambiguous() -> None:
    layers = _attention()
    fewer = [*layers[:3], dense("fc", (4, 10), ["query", "key"])]
    assert "3 in torch, 2 in flax, and nothing tells which is missing" in _refused(torch(*layers), jax(*fewer))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"quary.weight": "params/Query_0/kernel"}, "'quary.weight', which is no parameter or buffer of torch's model"),
        ({"query.weight": "params/Query_0/weight"}, "'params/Query_0/weight', which is no parameter or buffer of flax"),
        ({"query.weight": "params/Fc_0/kernel"}, "does not fit: shape [4, 4] against [4, 10]"),
        ({"norm.weight": "params/Norm_0/bias"}, "does not fit: a scale against a bias"),
        (
            {"query.weight": "params/Key_0/kernel", "key.weight": "params/Key_0/kernel"},
            "gives 'params/Key_0/kernel' twice: to 'query.weight' and to 'key.weight'",
        ),
        ({"lost": "params/Key_0/kernel"}, "'lost', which a pass through torch's model does not reach"),
    ],
)
def test_a_map_that_does_not_fit_is_refused_by_name(entry: dict, said: str) -> None:
    a, b = both(*_attention())
    assert said in _refused(replace(a, unused=("lost",)), b, given=entry)


def test_a_whole_map_is_taken_whatever_the_structure() -> None:
    a = torch(*_resnet(1))
    b = jax(*[renamed(each, after=("",)) for each in reversed(_resnet(1))])
    wanted = match(*both(*_resnet(1))).to_map()
    found = match(a, b, wanted)
    assert found.to_map() == wanted
    assert found.remarks


def test_other_wiring_of_the_same_layers_matches_by_order_and_is_remarked() -> None:
    layers = _resnet()
    cut = [renamed(each, after=("b2.bn2",)) if each.name == "fc" else each for each in layers]
    a = torch(*layers)
    found = match(a, jax(*cut))
    assert _is_by_name(found, a)
    assert len(found.remarks) == 1
    assert found.remarks[0].startswith("torch's fc after b2.bn2 and b1.bn2 and b1.shortbn, flax's")


def test_other_wiring_in_another_order_is_refused() -> None:
    cut = [renamed(each, after=("b2.bn2",)) if each.name == "fc" else each for each in _shortcut_first(_resnet())]
    text = _refused(torch(*_resnet()), jax(*cut))
    assert "torch's fc (dense 16x10+b) comes after b2.bn2 and b1.bn2 and b1.shortbn, flax's" in text
    given_rest = {"fc.weight": "params/Fc_0/kernel"}
    assert match(torch(*_resnet()), jax(*cut), given_rest).to_map()["fc.bias"] == "params/Fc_0/bias"


def test_a_pointwise_convolution_matches_a_dense_layer_and_keeps_torchs_shape() -> None:
    a = torch(convolution("head", (1, 1, 8, 10), [""], bias=True, groups=1))
    b = jax(dense("head", (8, 10), [""]))
    tables = match(a, b).names({})
    assert [each.shape for each in tables["jax"].variables] == [(1, 1, 8, 10), (10,)]
    assert tables["jax"].variables[0].own == "params/Head_0/kernel"
    grouped = torch(convolution("head", (1, 1, 8, 10), [""], bias=True, groups=2))
    assert "torch has head (convolution 1x1x8x10+b) where flax has" in _refused(grouped, b)


def test_layer_scales_match_in_either_shape() -> None:
    a = torch(parameters("block", [""], gamma=(8, 1, 1)), dense("fc", (8, 10), ["block"]))
    b = jax(parameters("block", [""], scale=(8,)), dense("fc", (8, 10), ["block"]))
    found = match(a, b)
    assert found.to_map()["block.gamma"] == "params/Block_0/scale"
    scale = found.names({})["jax"].variables[0]
    assert (scale.name, scale.shape) == ("block.gamma", (8, 1, 1))


def test_several_parameters_of_one_module_match_by_shape_then_by_name() -> None:
    a = torch(parameters("", [""], token=(1, 1, 8), place=(1, 5, 8), one=(8,)), dense("fc", (8, 10), [""]))
    b = jax(parameters("", [""], position=(5, 8), one=(8,), token=(8,)), dense("fc", (8, 10), [""]))
    found = match(a, b)
    assert found.to_map()["place"] == "params/position"
    assert found.to_map()["token"] == "params/token"
    assert [each.name for each in found.variables][:3] == ["token.gamma", "free", "one.gamma"]
    other = jax(parameters("", [""], position=(5, 8), two=(8,), three=(8,)), dense("fc", (8, 10), [""]))
    assert "torch's token (gamma [1, 1, 8]) may be 'params/two' or 'params/three' of flax's model" in _refused(a, other)
    assert match(a, other, {"token": "params/three"}).to_map()["one"] == "params/two"


def test_scales_of_a_block_match_those_of_a_module_of_its_own() -> None:
    convolutions = [convolution(f"c{index}", (3, 3, 8, 8), [f"c{index - 1}" if index else ""]) for index in range(3)]
    a = torch(*[each for c in convolutions for each in (c, parameters(f"s{c.name}", [c.name], gamma=(8,)))])
    b = jax(*convolutions, parameters("block", [""], one=(8,), two=(8,), three=(8,)), after=("C2_0",))
    found = match(a, b)
    assert found.to_map()["sc1.gamma"] == "params/Block_0/two"
    assert [t.path for t, _ in found.layers] == ["c0", "c1", "c2"]


def test_a_second_call_matches_a_second_call() -> None:
    layers = [
        convolution("c", (3, 3, 3, 3), [""]),
        again("c#2", "convolution", ["c"]),
        dense("fc", (3, 10), ["c#2"]),
    ]
    a, b = both(*layers)
    found = match(a, b)
    assert _is_by_name(found, a)
    assert found.names({})["jax"].layers == {"C_0": "c", "C_0#2": "c#2", "Fc_0": "fc"}
    assert len(found.variables) == 3
    own = [layers[0], convolution("d", (3, 3, 3, 3), ["c"]), dense("fc", (3, 10), ["d"])]
    assert "one is the second call of a layer, the other is not" in _refused(a, jax(*own))
    once = [layers[0], dense("fc", (3, 10), ["c"])]
    assert "flax lacks a layer like torch's c#2 (convolution called again)" in _refused(a, jax(*once))


def test_outputs_of_another_shape_are_refused_first() -> None:
    a, b = both(*_resnet())
    assert "[2, 10] in torch, [2, 7] in flax" in _refused(a, replace(b, output=(2, 7)))


def test_only_torchs_kernel_is_said_to_be_flattened() -> None:
    a, b = both(dense("fc", (8, 10), [""]))
    tables = match(a, b).names({"fc": 4})
    assert [each.flattened for each in tables["torch"].variables] == [4, None]
    assert [each.flattened for each in tables["jax"].variables] == [None, None]


def test_the_table_shows_both_sequences_around_the_place() -> None:
    whole = _resnet(8)
    text = _refused(torch(*whole), jax(*_without(whole, "b5.bn1")))
    lines = text.splitlines()
    assert lines[1].split() == ["torch", "|", "flax.linen"]
    assert sum("..." in line for line in lines) == 2 or "more" in lines[2]
    row = next(index for index, line in enumerate(lines) if line.startswith(">"))
    assert lines[row].rstrip().endswith("|")
    assert "b5.conv2" in lines[row + 1]
    assert flax_path("b5.conv2") in lines[row + 1]
    assert "b5.conv1" in lines[row - 1]


def test_five_hundred_layers_match_and_part_quickly() -> None:
    whole = _resnet(124)
    assert len(whole) > 500
    started = time.perf_counter()
    a, b = both(*whole)
    assert _is_by_name(match(a, b), a)
    _refused(a, jax(*_without(whole, "b60.bn1")))
    assert time.perf_counter() - started < 5


def _scaled(count: int, *, is_module: bool) -> list:
    """Blocks with a layer scale: a module at the end of a block, or the block itself, which then comes first."""
    layers, before = [], ""
    for index in range(count):
        inner = convolution(f"c{index}", (3, 3, 4, 4), [before])
        wide, narrow = dense(f"w{index}", (4, 16), [inner.name]), dense(f"n{index}", (16, 4), [f"w{index}"])
        if is_module:
            layers += [inner, wide, narrow, parameters(f"s{index}", [narrow.name], gamma=(4,))]
        else:
            layers += [parameters(f"s{index}", [before], gamma=(4,)), inner, wide, narrow]
        before = f"s{index}"
    return [*layers, dense("fc", (4, 10), [before])]


def test_layer_scales_of_modules_and_of_blocks_match() -> None:
    a, b = torch(*_scaled(18, is_module=True)), jax(*_scaled(18, is_module=False))
    found = match(a, b)
    assert found.to_map()["s17.gamma"] == "params/S17_0/gamma"
    assert found.to_map()["n9.weight"] == "params/N9_0/kernel"
    assert found.remarks == ()


@pytest.mark.parametrize("name", ["c0", "w11", "n17", "s9"])
def test_a_missing_layer_is_named_among_layer_scales(name: str) -> None:
    whole = _scaled(18, is_module=True)
    text = _refused(torch(*whole), jax(*_without(_scaled(18, is_module=False), name)))
    # Of layers that are alike, one after the other, the last is taken to be the missing one.
    assert f"flax lacks a layer like torch's {'s17' if name == 's9' else name} (" in text


def test_functions_before_the_logits_are_kept() -> None:
    a, b = both(*_resnet())
    assert match(replace(a, between=("softmax",)), b).ends == (("softmax",), ())


def test_a_map_may_give_one_layers_variables_to_two() -> None:
    a = torch(
        convolution("c", (3, 3, 3, 8), [""]), parameters("shift", ["c"], gamma=(8,)), dense("fc", (8, 10), ["shift"])
    )
    b = jax(convolution("c", (3, 3, 3, 8), [""], bias=True), dense("fc", (8, 10), ["c"]))
    assert "a missing bias, which flax has and torch has not" in _refused(a, b)
    whole = {
        "c.weight": "params/C_0/kernel",
        "shift.gamma": "params/C_0/bias",
        "fc.weight": "params/Fc_0/kernel",
        "fc.bias": "params/Fc_0/bias",
    }
    found = match(a, b, whole)
    assert found.to_map() == whole
    assert [t.path for t, _ in found.layers] == ["fc"]
