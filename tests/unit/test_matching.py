"""Matching by order, role and shape: what is found, what a map settles, and what is refused."""

import time
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from compare.base import names
from compare.base.trace import Layout, Trace
from compare.user_models.matching import Matching, match
from tests.unit.traced_models import attention, refused, resnet, scaled, shortcut_first, without
from tests.unit.traces import Said, again, both, convolution, dense, flax_path, jax, parameters, renamed, torch


def _is_by_name(found: Matching, a: Trace) -> bool:
    assert [t.path for t, _ in found.layers] == [each.path for each in a.layers]
    return all(j.path == flax_path(t.path) for t, j in found.layers)


def test_the_same_model_matches_layer_by_layer() -> None:
    a, b = both(*resnet())
    found = match(a, b)
    assert _is_by_name(found, a)
    assert found.remarks == ()
    assert found.to_map()["b1.shortbn.running_var"] == "batch_stats/B1_0/Shortbn_0/var"
    assert len(found.to_map()) == sum(len(layer.variables) for layer in a.layers)


def test_another_order_of_execution_matches_by_what_comes_before() -> None:
    a, b = torch(*resnet()), jax(*shortcut_first(resnet()))
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


def test_the_size_of_what_they_give_tells_branches_apart() -> None:
    fine, coarse = (
        renamed(convolution(name, (3, 3, 3, 4), [""]), output=(2, side, side, 4))
        for name, side in (("fine", 4), ("coarse", 2))
    )
    last = dense("fc", (8, 10), ["fine", "coarse"])
    a = torch(fine, coarse, last)
    assert _is_by_name(match(a, jax(coarse, fine, last)), a)


def test_ambiguous_layers_are_refused_and_a_map_settles_them() -> None:
    a, b = both(*attention())
    text = refused(a, b)
    assert text.startswith("ambiguous: torch's left, right, middle and flax's Left_0, Right_0, Middle_0")
    assert "1 layer matches before" in text
    assert "'params/Right_0/kernel'" in text
    part = {"left.weight": "params/Left_0/kernel", "right.weight": "params/Middle_0/kernel"}
    found = match(a, b, part).to_map()
    assert found["right.bias"] == "params/Middle_0/bias"
    assert found["middle.weight"] == "params/Right_0/kernel"
    assert match(a, b, found).to_map() == found
    assert "ambiguous: torch's right, middle" in refused(a, b, given={"left.weight": "params/Left_0/kernel"})


def test_the_number_of_pools_tells_branches_apart_whose_pools_differ() -> None:
    def branches(pool: str, *names: str) -> list[Said]:
        made = [renamed(dense(name, (4, 4), [""]), between=(pool,) * (1 + (name == "long"))) for name in names]
        return [*made, dense("fc", (4, 10), names)]

    a, b = torch(*branches("max-pool(3, 2, ceil)", "long", "short")), jax(*branches("max-pool(3, 2)", "short", "long"))
    assert match(a, b).to_map()["long.weight"] == "params/Long_0/kernel"


def test_the_names_of_an_attention_tell_its_parts_apart() -> None:
    def parts(*names: str) -> list[Said]:
        return [*(dense(name, (4, 4), [""]) for name in names), dense("fc", (4, 10), names)]

    found = match(torch(*parts("to_q", "to_k", "to_v")), jax(*parts("value", "query", "key"))).to_map()
    assert found["to_q.weight"] == "params/Query_0/kernel"
    assert found["to_v.bias"] == "params/Value_0/bias"


def test_equal_names_and_numbers_tell_layers_apart_if_nothing_else_does() -> None:
    def parts(*names: str) -> list[Said]:
        return [
            dense("stem", (4, 4), [""]),
            *(dense(name, (4, 4), ["stem"]) for name in names),
            dense("fc", (4, 10), names),
        ]

    def side(*paths: str) -> Trace:
        made = jax(*parts("a", "b", "c"))
        chosen: dict[str, str] = dict(zip(("A_0", "B_0", "C_0"), paths, strict=True))
        layers = [
            replace(
                each,
                path=chosen.get(each.path, each.path),
                after=tuple(chosen.get(path, path) for path in each.after),
                variables=tuple(
                    replace(own, own=own.own.replace(each.path, chosen.get(each.path, each.path)))
                    for own in each.variables
                ),
            )
            for each in made.layers
        ]
        return replace(made, layers=tuple(layers))

    found = match(torch(*parts("g", "theta", "phi")), side("Block_0/theta", "Block_0/phi", "Block_0/g")).to_map()
    assert found["phi.weight"] == "params/Block_0/phi/kernel"
    found = match(torch(*parts("list.0", "list.1", "list.2")), side("Dense_3", "Dense_5", "Dense_11")).to_map()
    assert found["list.2.weight"] == "params/Dense_11/kernel"
    assert "ambiguous" in refused(torch(*parts("list.0", "list.1", "list.2")), side("Dense_3", "Dense_11", "Dense_5"))


def test_activations_behind_them_tell_a_filter_and_its_gate_apart() -> None:
    def side(trace: Trace, **applied: str) -> Trace:
        layers = [replace(each, applied=("reshape", applied.get(each.path, "multiply"))) for each in trace.layers]
        return replace(trace, layers=tuple(layers))

    layers = [dense(name, (4, 4), [""]) for name in ("filter", "gate")]
    a, b = (each(*layers, dense("fc", (4, 10), ["filter", "gate"])) for each in (torch, jax))
    found = match(side(a, filter="tanh", gate="sigmoid"), side(b, Filter_0="sigmoid", Gate_0="tanh"))
    assert found.to_map()["filter.weight"] == "params/Gate_0/kernel"


def test_free_parameters_of_one_shape_match_in_the_order_of_their_first_use() -> None:
    def side(trace: Trace, moments: Sequence[int]) -> Trace:
        first, *rest = trace.layers
        variables = [replace(each, moment=moment) for each, moment in zip(first.variables, moments, strict=True)]
        return replace(trace, layers=(replace(first, variables=tuple(variables)), *rest))

    last = dense("fc", (4, 10), ["tokens"])
    a = torch(parameters("tokens", [""], kind=(4,), teacher=(4,)), last)
    b = jax(parameters("tokens", [""], other=(4,), own=(4,)), last)
    assert match(side(a, (0, 1)), side(b, (7, 3))).to_map()["tokens.kind"] == "params/Tokens_0/own"
    assert "may be" in refused(a, side(b, (7, 3)))


def test_zeros_that_a_function_pads_count_as_those_of_the_convolution() -> None:
    def side(padding: int, *between: str) -> Said:
        layer = convolution("stem", (3, 3, 3, 4), [""], padding=[[padding, padding]] * 2)
        return renamed(layer, between=between)

    last = dense("fc", (4, 10), ["stem"])
    found = match(torch(side(0, "relu", "pad by [[1, 1], [1, 1]]"), last), jax(side(1, "relu"), last))
    (first, second), _ = found.layers
    assert first.settings == second.settings
    assert first.between == second.between == ("relu",)
    assert "stem" not in found.names()["torch"].layers  # the inputs differ in shape


def test_a_whole_map_is_taken_whatever_the_structure() -> None:
    a = torch(*resnet(1))
    b = jax(*[renamed(each, after=("",)) for each in reversed(resnet(1))])
    wanted = match(*both(*resnet(1))).to_map()
    found = match(a, b, wanted)
    assert found.to_map() == wanted
    assert found.remarks


def test_other_wiring_of_the_same_layers_matches_by_order_and_is_remarked() -> None:
    layers = resnet()
    cut = [renamed(each, after=("b2.bn2",)) if each.name == "fc" else each for each in layers]
    a = torch(*layers)
    found = match(a, jax(*cut))
    assert _is_by_name(found, a)
    assert len(found.remarks) == 1
    assert found.remarks[0].startswith("torch's fc after b2.bn2 and b1.bn2 and b1.shortbn, flax's")


def test_a_pointwise_convolution_matches_a_dense_layer_and_keeps_torchs_shape() -> None:
    a = torch(convolution("head", (1, 1, 8, 10), [""], bias=True, groups=1))
    b = jax(dense("head", (8, 10), [""]))
    tables = match(a, b).names()
    assert [each.shape for each in tables["jax"].variables] == [(1, 1, 8, 10), (10,)]
    assert tables["jax"].variables[0].own == "params/Head_0/kernel"
    grouped = torch(convolution("head", (1, 1, 8, 10), [""], bias=True, groups=2))
    assert "torch has head (convolution 1x1x8x10+b) where flax has" in refused(grouped, b)


def test_layer_scales_match_in_either_shape() -> None:
    a = torch(parameters("block", [""], gamma=(8, 1, 1)), dense("fc", (8, 10), ["block"]))
    b = jax(parameters("block", [""], scale=(8,)), dense("fc", (8, 10), ["block"]))
    found = match(a, b)
    assert found.to_map()["block.gamma"] == "params/Block_0/scale"
    scale = found.names()["jax"].variables[0]
    assert (scale.name, scale.shape) == ("block.gamma", (8, 1, 1))


def test_several_parameters_of_one_module_match_by_shape_then_by_name() -> None:
    a = torch(parameters("", [""], token=(1, 1, 8), place=(1, 5, 8), one=(8,)), dense("fc", (8, 10), [""]))
    b = jax(parameters("", [""], position=(5, 8), one=(8,), token=(8,)), dense("fc", (8, 10), [""]))
    found = match(a, b)
    assert found.to_map()["place"] == "params/position"
    assert found.to_map()["token"] == "params/token"
    assert [each.name for each in found.variables][:3] == ["token.gamma", "free", "one.gamma"]
    other = jax(parameters("", [""], position=(5, 8), two=(8,), three=(8,)), dense("fc", (8, 10), [""]))
    assert "torch's token (gamma [1, 1, 8]) may be 'params/two' or 'params/three' of flax's model" in refused(a, other)
    assert match(a, other, {"token": "params/three"}).to_map()["one"] == "params/two"


def test_scales_of_a_block_match_those_of_a_module_of_its_own() -> None:
    def convolutions(before: str) -> list[Said]:
        return [convolution(f"c{index}", (3, 3, 8, 8), [f"{before}{index - 1}" if index else ""]) for index in range(3)]

    a = torch(*[each for c in convolutions("sc") for each in (c, parameters(f"s{c.name}", [c.name], gamma=(8,)))])
    b = jax(*convolutions("c"), parameters("block", [""], one=(8,), two=(8,), three=(8,)), after=("C2_0",))
    found = match(a, b)
    assert found.to_map()["sc1.gamma"] == "params/Block_0/two"
    assert [t.path for t, _ in found.layers] == ["c0", "c1", "c2"]
    assert found.remarks == ()


def test_functions_before_the_scale_of_a_block_stand_before_the_layer_behind_it() -> None:
    first, scale = convolution("a", (3, 3, 3, 8), [""]), renamed(parameters("s", ["a"], gamma=(8,)), between=("relu",))
    other = parameters("t", ["b"], gamma=(6,))
    a = torch(first, scale, convolution("b", (3, 3, 8, 6), ["s"]), other, dense("fc", (6, 10), ["t"]))
    second = renamed(convolution("b", (3, 3, 8, 6), ["a"]), between=("relu", "multiply"))
    last = renamed(dense("fc", (6, 10), ["b"]), between=("multiply",))
    b = jax(parameters("", [""], one=(8,), two=(6,)), first, second, last)
    found = match(a, b)
    assert [(t.after, t.between) for t, _ in found.layers[1:]] == [
        (("a",), ("relu", "multiply")),
        (("b",), ("multiply",)),
    ]
    assert found.remarks == ()
    assert found.to_map()["s.gamma"] == "params/one"


def test_a_second_call_matches_a_second_call() -> None:
    layers = [
        convolution("c", (3, 3, 3, 3), [""]),
        again("c#2", "convolution", ["c"]),
        dense("fc", (3, 10), ["c#2"]),
    ]
    a, b = both(*layers)
    found = match(a, b)
    assert _is_by_name(found, a)
    assert found.names()["jax"].layers == {"C_0": "c", "C_0#2": "c#2", "Fc_0": "fc"}
    assert len(found.variables) == 3
    own = [layers[0], convolution("d", (3, 3, 3, 3), ["c"]), dense("fc", (3, 10), ["d"])]
    assert "one is the second call of a layer, the other is not" in refused(a, jax(*own))
    once = [layers[0], dense("fc", (3, 10), ["c"])]
    assert "flax lacks a layer like torch's c#2 (convolution called again)" in refused(a, jax(*once))


def test_orders_of_variables_and_layouts_travel_with_each_side() -> None:
    a, b = both(dense("fc", (4, 10), [""]))
    layer = a.layers[0]
    turned = replace(layer.variables[0], orders=((0, 2, 1, 3), ()))
    a = replace(
        a, layers=(replace(layer, variables=(turned, *layer.variables[1:]), input_layout=Layout((), (0, 2, 1, 3))),)
    )
    tables = match(a, b).names()
    assert [each.orders for each in tables["torch"].variables] == [((0, 2, 1, 3), ()), ()]
    assert [each.orders for each in tables["jax"].variables] == [(), ()]
    assert tables["torch"].layouts == {"fc": (Layout((), (0, 2, 1, 3)), Layout())}
    assert names.from_json(tables["torch"].to_json()) == tables["torch"]
    assert match(a, b).names(apart=["fc"])["jax"].layers == {}


def test_five_hundred_layers_match_and_part_quickly() -> None:
    whole = resnet(124)
    assert len(whole) > 500
    started = time.process_time()
    a, b = both(*whole)
    assert _is_by_name(match(a, b), a)
    refused(a, jax(*without(whole, "b60.bn1")))
    assert time.process_time() - started < 10  # of this process: other work counts for nothing


def test_layer_scales_of_modules_and_of_blocks_match() -> None:
    a, b = torch(*scaled(18, is_module=True)), jax(*scaled(18, is_module=False))
    found = match(a, b)
    assert found.to_map()["s17.gamma"] == "params/S17_0/gamma"
    assert found.to_map()["n9.weight"] == "params/N9_0/kernel"
    assert found.remarks == ()


def test_functions_before_the_logits_are_kept() -> None:
    a, b = both(*resnet())
    assert match(replace(a, between=("softmax",)), b).ends == (("softmax",), ())


def test_a_map_may_give_one_layers_variables_to_two() -> None:
    a = torch(
        convolution("c", (3, 3, 3, 8), [""]), parameters("shift", ["c"], gamma=(8,)), dense("fc", (8, 10), ["shift"])
    )
    b = jax(convolution("c", (3, 3, 3, 8), [""], bias=True), dense("fc", (8, 10), ["c"]))
    assert "a missing bias, which flax has and torch has not" in refused(a, b)
    whole = {
        "c.weight": "params/C_0/kernel",
        "shift.gamma": "params/C_0/bias",
        "fc.weight": "params/Fc_0/kernel",
        "fc.bias": "params/Fc_0/bias",
    }
    found = match(a, b, whole)
    assert found.to_map() == whole
    assert [t.path for t, _ in found.layers] == ["fc"]
