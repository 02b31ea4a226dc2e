"""Traces that do not match: what is said to differ, where, and how it is shown."""

from dataclasses import replace

import pytest

from compare.user_models.matching import match
from tests.unit.traced_models import attention, refused, resnet, scaled, shortcut_first, without
from tests.unit.traces import (
    Said,
    again,
    batch_norm,
    both,
    convolution,
    dense,
    flax_path,
    jax,
    parameters,
    renamed,
    torch,
)


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
    text = refused(torch(*layers), jax(*without(swapped, "n")))
    assert text.startswith(
        "the layers do not match: flax lacks a layer like torch's n (batch-norm 8); 4 layers match before"
    )


def test_a_missing_parameter_is_named_although_one_module_holds_the_others_on_one_side() -> None:
    star, scales = parameters("star", ["a"], gain=(1,)), [parameters(name, [], gamma=(8,)) for name in ("s", "t")]
    layers = [dense("a", (4, 8), [""]), dense("fc", (8, 10), ["a"])]
    own = parameters("", [""], one=(8,), two=(8,))
    text = refused(torch(layers[0], star, *scales, layers[1]), jax(own, *layers))
    assert text.startswith("the layers do not match: flax lacks a parameter like torch's star.gain (parameters 1);")


def test_a_batch_norm_of_constant_buffers_has_a_remedy_of_its_own() -> None:
    layers = [convolution("a", (1, 1, 3, 4), [""]), batch_norm("n", 4, ["a"]), dense("fc", (4, 10), ["n"])]
    constants = tuple(f"n.{name}" for name in ("weight", "bias", "running_mean", "running_var"))
    wanted = "torch's n may be a batch norm, but all its tensors are buffers that never change"
    assert wanted in refused(torch(*without(layers, "n"), constants=constants), jax(*layers))
    assert wanted not in refused(torch(*without(layers, "n"), constants=constants[:3]), jax(*layers))


@pytest.mark.parametrize("name", ["stembn", "b0.bn1", "b1.conv2", "b1.shortbn", "b2.bn2"])
def test_a_missing_layer_is_named_on_either_side(name: str) -> None:
    whole, less = resnet(), without(resnet(), name)
    place = [each.name for each in whole].index(name)
    text = refused(torch(*whole), jax(*less))
    assert text.startswith(f"the layers do not match: flax lacks a layer like torch's {name} (")
    assert f"; {place} layer{'s' if place > 1 else ''} match" in text
    assert "--weights-map cannot make up for it" in text
    assert f"the layers do not match: torch lacks a layer like flax's {flax_path(name)} (" in refused(
        torch(*less), jax(*whole)
    )


def test_several_missing_layers_are_counted() -> None:
    whole = resnet()
    less = without(without(whole, "b1.conv2"), "b1.bn2")
    assert "flax lacks a layer like torch's b1.conv2 (convolution 3x3x16x16) and 1 after it;" in refused(
        torch(*whole), jax(*less)
    )


def test_a_layer_too_many_at_the_end_is_named() -> None:
    layers = [*resnet(), dense("extra", (10, 10), ["fc"])]
    assert "flax lacks a layer like torch's extra (dense 10x10+b)" in refused(torch(*layers), jax(*resnet()))
    assert "torch lacks a layer like flax's Extra_0 (dense 10x10+b)" in refused(torch(*resnet()), jax(*layers))


def test_a_missing_bias_is_told_from_a_missing_layer() -> None:
    layers = resnet()
    with_bias = [
        convolution("b1.conv2", (3, 3, 16, 16), ["b1.bn1"], bias=True) if e.name == "b1.conv2" else e for e in layers
    ]
    text = refused(torch(*with_bias), jax(*layers))
    assert "a missing bias, which torch has and flax has not: torch's b1.conv2 (convolution 3x3x16x16+b)" in text
    assert "which flax has and torch has not" in refused(torch(*layers), jax(*with_bias))


def test_another_shape_is_named() -> None:
    layers = resnet()
    wide = [convolution("b1.conv2", (5, 5, 16, 16), ["b1.bn1"]) if e.name == "b1.conv2" else e for e in layers]
    text = refused(torch(*layers), jax(*wide))
    assert "another shape of kernel, 3x3x16x16 in torch and 5x5x16x16 in flax" in text
    row = next(line for line in text.splitlines() if line.startswith(">"))
    assert "b1.conv2" in row
    assert flax_path("b1.conv2") in row


def test_another_role_is_named() -> None:
    layers = resnet()
    other = [
        renamed(e, role="layer-norm", shapes={"scale": (8,), "bias": (8,)}) if e.name == "stembn" else e for e in layers
    ]
    assert "torch has stembn (batch-norm 8) where flax has Stembn_0 (layer-norm 8)" in refused(
        torch(*layers), jax(*other)
    )


def test_one_of_several_alike_that_is_missing_is_ambiguous() -> None:
    layers = attention()
    fewer = [*layers[:3], dense("fc", (4, 10), ["left", "right"])]
    assert "3 in torch, 2 in flax, and neither shapes nor the layers behind tell which is missing" in refused(
        torch(*layers), jax(*fewer)
    )


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"quary.weight": "params/Left_0/kernel"}, "'quary.weight', which is no parameter or buffer of torch's model"),
        ({"left.weight": "params/Left_0/weight"}, "'params/Left_0/weight', which is no parameter or buffer of flax"),
        ({"left.weight": "params/Fc_0/kernel"}, "does not fit: shape [4, 4] against [4, 10]"),
        ({"norm.weight": "params/Norm_0/bias"}, "does not fit: a scale against a bias"),
        (
            {"left.weight": "params/Right_0/kernel", "right.weight": "params/Right_0/kernel"},
            "gives 'params/Right_0/kernel' twice: to 'left.weight' and to 'right.weight'",
        ),
        ({"lost": "params/Right_0/kernel"}, "'lost', which a forward pass of torch's model does not use"),
    ],
)
def test_a_map_that_does_not_fit_is_refused_by_name(entry: dict, said: str) -> None:
    a, b = both(*attention())
    assert said in refused(replace(a, unused=("lost",)), b, given=entry)


def test_other_wiring_in_another_order_is_refused() -> None:
    cut = [renamed(each, after=("b2.bn2",)) if each.name == "fc" else each for each in shortcut_first(resnet())]
    text = refused(torch(*resnet()), jax(*cut))
    assert "torch's fc (dense 16x10+b) comes after b2.bn2 and b1.bn2 and b1.shortbn, flax's" in text
    given_rest = {"fc.weight": "params/Fc_0/kernel"}
    assert match(torch(*resnet()), jax(*cut), given_rest).to_map()["fc.bias"] == "params/Fc_0/bias"


def test_outputs_of_another_shape_are_refused_first() -> None:
    a, b = both(*resnet())
    assert "[2, 10] in torch, [2, 7] in flax" in refused(a, replace(b, output=(2, 7)))


def test_the_table_shows_both_sequences_around_the_place() -> None:
    whole = resnet(8)
    text = refused(torch(*whole), jax(*without(whole, "b5.bn1")))
    lines = text.splitlines()
    assert lines[1].split() == ["torch", "|", "flax.linen"]
    assert sum("..." in line for line in lines) == 2 or "more" in lines[2]
    row = next(index for index, line in enumerate(lines) if line.startswith(">"))
    assert lines[row].rstrip().endswith("|")
    assert "b5.conv2" in lines[row + 1]
    assert flax_path("b5.conv2") in lines[row + 1]
    assert "b5.conv1" in lines[row - 1]


@pytest.mark.parametrize("name", ["c0", "w11", "n17", "s9"])
def test_a_missing_layer_is_named_among_layer_scales(name: str) -> None:
    whole = scaled(18, is_module=True)
    text = refused(torch(*whole), jax(*without(scaled(18, is_module=False), name)))
    # Of layers that are alike, one after the other, the last is taken to be the missing one.
    lacking = "a parameter like torch's s17.gamma" if name == "s9" else f"a layer like torch's {name}"
    assert f"flax lacks {lacking} (" in text


def test_layers_in_a_loop_are_named_with_the_loop() -> None:
    layers = [convolution("a", (3, 3, 8, 8), [""]), convolution("b", (3, 3, 8, 8), ["a"]), dense("fc", (8, 10), ["b"])]
    scanned = jax(convolution("a", (2, 3, 3, 8, 8), [""]), dense("fc", (8, 10), ["a"]))
    first, *others = scanned.layers
    text = refused(torch(*layers), replace(scanned, layers=(replace(first, is_looped=True), *others)))
    assert "nn.scan" in text
    assert f"calls flax's {first.path}," in text
    assert "write the loop over the layers out" in text


@pytest.mark.parametrize("is_torch", [True, False])
def test_weights_that_one_side_uses_twice_are_named_with_a_cure(is_torch: bool) -> None:
    stem, fc = convolution("stem", (3, 3, 3, 8), [""]), dense("fc", (8, 10), ["second"])
    tied = [stem, convolution("first", (3, 3, 8, 8), ["stem"]), again("first#2", "convolution", ["first"])]
    untied = [*tied[:2], convolution("second", (3, 3, 8, 8), ["first"])]
    tied.append(renamed(fc, after=("first#2",)))
    untied.append(fc)
    a, b = (torch(*tied), jax(*untied)) if is_torch else (torch(*untied), jax(*tied))
    words = "flax has others in Second_0; in flax call First_0" if is_torch else "others in second; in torch call first"
    assert "uses the weights of " in refused(a, b)
    assert f"{words} there again" in refused(a, b)


def test_a_decoder_with_the_weights_of_an_embedding_is_named() -> None:
    embed = Said("embed", "embedding", {"embedding": (10, 8)}, ("",))
    a = torch(embed, dense("hidden", (8, 8), ["embed"]), reused=("embed.embedding",))
    b = jax(embed, dense("hidden", (8, 8), ["embed"]), dense("decoder", (8, 10), ["hidden"], bias=False))
    assert "torch uses the weights of embed at 2 places, and flax has others in params/Decoder_0/kernel" in refused(
        a, b
    )
