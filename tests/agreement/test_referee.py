"""The float64 referee on made-up records: who is imprecise, by how much, and what no float64 could resolve."""

import math

import numpy as np
import pytest

from compare.agreement import certificate, gates, referee
from compare.agreement.certificate import Certificate
from compare.agreement.floors import ULP64, Noise
from compare.agreement.referee import Referee
from compare.base.interface import Array, Arrays
from compare.base.precisions import PRECISIONS, REFERENCE
from tests.agreement import made_up

EXACT = made_up.exact()
NAMES = made_up.compared(EXACT)
SIDES = ("baseline", "contender")
DEPTH = math.sqrt(len(made_up.ACTIVATIONS))
LOST = (
    2e-6  # of a gradient of about 1: more than float32's noise, less than four standard deviations of what is allowed
)
Records = dict[str, Arrays]


def noise(precision: str, **ulp: float) -> Noise:
    """Return the noise of well-conditioned tensors, with `ulp` in place of an ulp at tensors whose name ends so."""
    found = dict.fromkeys(NAMES, ULP64)
    found |= {name: value for name in NAMES for end, value in ulp.items() if name.endswith(end)}
    roundoff = None if precision == REFERENCE else PRECISIONS[precision].roundoff
    return Noise(found, None if roundoff is None else dict.fromkeys(NAMES, roundoff))


def sides(precision: str, errors: tuple[float, float]) -> tuple[Records, Records]:
    """Return the records of two sides that round at the given relative sizes at `precision`."""

    def side(seed: int, error: float) -> Records:
        return {
            "float64": made_up.rounded(EXACT, 2.0**-53, seed=seed),
            "float32": made_up.rounded(EXACT, 2.0**-24, seed=seed + 10, dtype="float32"),
        } | {precision: made_up.rounded(EXACT, error, seed=seed + 20, dtype="float32")}

    return side(0, errors[0]), side(1, errors[1])


def judged(precision: str, records: tuple[Records, Records]) -> Referee:
    return referee.judge(*records, precision, noise(precision))


def certified(precision: str, records: tuple[Records, Records]) -> Certificate:
    return certificate.judge(*records, precision, noise(precision))


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != REFERENCE])
def test_two_sides_that_round_as_the_precision_does_agree(precision: str):
    roundoff = PRECISIONS[precision].roundoff
    found = certified(precision, sides(precision, (roundoff, roundoff)))
    assert found.passed
    assert found.first_mismatch is None
    value = {gate.name: gate.value for gate in found.gates}["precision"]
    assert value is not None
    assert 0.5 / DEPTH < value < 2


@pytest.mark.parametrize("owner", [0, 1], ids=SIDES)
@pytest.mark.parametrize(
    ("precision", "precise", "coarse"),
    [("bfloat16", 2.0**-24, 2.0**-8), ("float32", 0.0, 2.0**-24), ("float32", 2.0**-24, 2.0**-11)],
    ids=["float32 for bfloat16", "no rounding for float32", "TF32 for float32"],
)
def test_a_side_in_another_precision_is_a_mismatch_that_names_the_less_precise_side(
    precision: str, precise: float, coarse: float, owner: int
):
    records = sides(precision, (coarse, precise) if owner == 0 else (precise, coarse))
    found, made = judged(precision, records), certified(precision, records)
    assert [gate.passed for gate in made.gates] == [True, True, False]
    assert found.mismatch is not None
    said = f"in float64 both are the same function: what failed is how one side computes in {precision}"
    assert made.notes[:2] == (said, found.mismatch)
    first = [found.describe_owner(found.failing[0])] if found.failing else []
    assert made.first_mismatch == "; ".join([*first, found.mismatch])
    assert found.mismatch.startswith(f"precision mismatch: the {SIDES[owner]}'s median error is ")
    assert f"times the {SIDES[1 - owner]}'s" in found.mismatch


@pytest.mark.parametrize(("times", "differs"), [(25, False), (35, True)])
def test_thirty_times_the_other_s_median_error_is_another_precision(times: float, differs: bool):
    errors = dict.fromkeys(NAMES, PRECISIONS["bfloat16"].roundoff)
    less = {name: error / times for name, error in errors.items()}
    found = Referee(less, errors, errors)
    assert (found.mismatch is not None) == differs
    assert found.gate.passed != differs  # although no tensor is over the limit
    assert found.failing == []


@pytest.mark.parametrize("owner", [0, 1], ids=SIDES)
def test_a_relu_that_rounding_switches_on_one_side_alone_is_no_other_precision(owner: int):
    forward = [name for name in NAMES if name.startswith(("step1/activation", "step1/logits", "step1/loss"))]
    assert 0 < len(forward) < len(NAMES) / 2
    floor = dict.fromkeys(NAMES, PRECISIONS["float32"].roundoff)
    switched = {name: error if name in forward else 100 * error for name, error in floor.items()}
    found = Referee(*((switched, floor) if owner == 0 else (floor, switched)), dict.fromkeys(NAMES, 1e-3))
    assert found.mismatch is None
    assert found.gate.passed
    precise = {name: error / 100 for name, error in switched.items()}
    assert Referee(switched, precise, floor).mismatch is not None


TF32_ON = ("step2/gradient/first.kernel", "step1/gradient/dense.kernel", "step1/gradient/strided.kernel")


@pytest.mark.parametrize("owner", [0, 1], ids=SIDES)
def test_tf32_on_a_few_tensors_names_the_owner_and_the_first_of_them_in_execution_order(owner: int):
    records = sides("float32", (2.0**-24, 2.0**-24))
    coarse = made_up.rounded(EXACT, 2.0**-11, dtype="float32")
    records[owner]["float32"] |= {name: coarse[name] for name in TF32_ON}
    found = judged("float32", records)
    assert found.mismatch is None
    assert found.failing == [TF32_ON[1], TF32_ON[2], TF32_ON[0]]  # of step 1 the last layer's first
    made = certified("float32", records)
    assert [gate.passed for gate in made.gates] == [True, True, False]
    assert made.first_mismatch is not None
    assert made.first_mismatch.startswith(f"{TF32_ON[1]}: the {SIDES[owner]}'s error is larger (4.9e-04 against ")
    assert made.first_mismatch.endswith(", more than rounding")
    assert made.gates[2].worst_tensor in TF32_ON


@pytest.mark.parametrize(
    ("owner", "moved", "error", "told"),
    [(0, 1, 0.03, True), (1, 2, 0.05, True), (1, 0, 0.03, False), (0, 1, 0.9, False)],
)
def test_an_output_that_rounding_moves_across_zero_is_told_of(owner: int, moved: int, error: float, told: bool):
    records = sides("float32", (2.0**-24, 2.0**-24))
    output, gradient = "step2/activation/norm", "step2/gradient/norm.scale"
    size = EXACT[output].size
    for record in records:
        for precision in record:
            record[precision] |= {output: record[precision][output].copy()}
            record[precision][output].flat[:2] = 1e-9
    records[owner]["float32"][output].flat[:moved] = -1e-9
    records[owner]["float32"] |= {gradient: ((1 + error) * EXACT[gradient]).astype("float32")}
    made = certified("float32", records)
    assert [gate.passed for gate in made.gates] == [True, True, False]
    assert made.first_mismatch is not None
    cause = f"likely cause: rounding moves {moved} of {size} outputs of norm across zero, where a ReLU opens or shuts"
    assert (cause in made.first_mismatch) is told


def one(error: float, floor: float) -> Referee:
    return Referee({"step1/loss": error}, {"step1/loss": error}, {"step1/loss": floor})


@pytest.mark.parametrize(("error", "passes"), [(9.9e-7, True), (1.01e-6, False)])
def test_an_error_may_be_ten_times_its_noise_floor(error: float, passes: bool):
    found = one(error, 1e-7)
    assert found.gate.passed == passes
    assert found.gate.value == pytest.approx(error / 1e-7)
    assert found.failing == ([] if passes else ["step1/loss"])
    assert found.describe_owner("step1/loss").endswith(", rounding" if passes else ", more than rounding")


def test_the_floor_grows_with_the_square_root_of_the_number_of_layers():
    found = judged("bfloat16", sides("bfloat16", (2.0**-8, 2.0**-8)))
    assert found.floor["step1/logits"] == pytest.approx(DEPTH * 2.0**-8)


def test_the_floor_of_a_tensor_that_cancels_is_float64_s_own_rounding_at_the_precision_s_scale():
    records = sides("float32", (2.0**-24, 2.0**-24))
    found = referee.judge(*records, "float32", noise("float32", **{"norm.scale": 1e-12}))
    for name in NAMES:
        if name.endswith("norm.scale") and not name.startswith("delta/"):
            assert found.floor[name] == pytest.approx(DEPTH * 1e-12 * 2.0**-24 / 2.0**-52)
        elif name.endswith("activation/norm"):
            assert found.floor[name] == pytest.approx(DEPTH * 2.0**-24)


def test_the_floor_of_a_small_update_is_what_float32_stores_of_it():
    small = "step1/update/dense.kernel"
    records = sides("float32", (2.0**-24, 2.0**-24))
    for record in records:
        record["float64"] = {**record["float64"], small: EXACT[small] * 1e-4}
    found = judged("float32", records)
    size = np.linalg.norm(EXACT["initial/dense.kernel"]) / np.linalg.norm(records[0]["float64"][small])
    assert found.floor[small] == pytest.approx(2.0**-24 * size)
    assert found.floor["step1/gradient/dense.kernel"] == pytest.approx(DEPTH * 2.0**-24)


@pytest.mark.parametrize("owner", [0, 1], ids=SIDES)
@pytest.mark.parametrize("name", ["delta/dense.kernel", "delta/norm.mean"])
def test_a_path_that_is_timed_and_is_wrong_at_the_precision_alone_is_caught(owner: int, name: str):
    records = sides("float32", (2.0**-24, 2.0**-24))
    assert judged("float32", records).failing == []
    records[owner]["float32"][name] = -records[owner]["float32"][name]
    assert judged("float32", records).failing == [name]
    said = certified("float32", records).first_mismatch or ""
    assert said.startswith(f"{name}: the {SIDES[owner]}'s error is larger")


LARGE, SMALL = "step1/gradient/strided.kernel", "step1/gradient/norm.scale"  # 81 elements and 3


@pytest.mark.parametrize("owner", [0, 1], ids=SIDES)
@pytest.mark.parametrize(
    ("lost", "left", "other", "ulp", "caught"),
    [
        (LARGE, 0.0, 0.01, ULP64, True),
        (LARGE, 0.0, 0.2, ULP64, True),
        (LARGE, 0.0, 0.3, ULP64, False),  # the other side's is lost as well
        (LARGE, 0.6, 0.01, ULP64, False),  # less than half is wrong
        (LARGE, 0.0, 0.01, 1e-13, False),  # it cancels
        (SMALL, 0.0, 0.02, ULP64, True),
        (SMALL, 0.0, 0.05, ULP64, False),  # of so few elements the errors may differ by as much
    ],
)
def test_no_noise_forgives_a_gradient_that_one_side_has_not(
    owner: int, lost: str, left: float, other: float, ulp: float, caught: bool
):
    records = sides("bfloat16", (2.0**-8, 2.0**-8))
    whole = EXACT[lost]
    records[owner]["bfloat16"][lost] = left * whole
    records[1 - owner]["bfloat16"][lost] = (1 + other) * whole
    loud = noise("bfloat16", **{lost: ulp})
    loud = Noise(loud.ulp, dict.fromkeys(NAMES, 0.5))
    found = referee.judge(*records, "bfloat16", loud)
    assert found.failing == ([lost] if caught else [])
    assert not caught or found.describe_owner(lost).endswith("more than rounding")


def test_without_a_noise_floor_there_is_nothing_to_judge_by():
    with pytest.raises(ValueError, match="no noise was measured for float64"):
        judged("float64", sides("float64", (2.0**-53, 2.0**-53)))


def test_an_error_is_forgiven_in_proportion_to_how_badly_the_tensor_is_resolved():
    found = Noise({"bad": 1e-6, "good": 2.0**-52, "barely": 1e-11})
    errors: dict[str, float] = dict.fromkeys(("bad", "good", "barely", "unknown"), 1e-8)
    assert found.resolve(errors, {}) == pytest.approx({"bad": 1e-13, "good": 1e-8, "barely": 1e-8, "unknown": 1e-8})


def test_of_many_layers_every_one_rounds_once_more():
    errors = {"bad": 1e-8, **{f"step1/activation/{layer}": 0.0 for layer in range(16)}}
    assert Noise({"bad": 1e-6}).resolve(errors, {})["bad"] == pytest.approx(1e-13 / 4)


def test_running_statistics_of_the_end_are_judged_as_those_of_the_last_step():
    last = f"step{made_up.STEPS}/buffer/norm.var"
    roundoff = dict.fromkeys(NAMES, PRECISIONS["float32"].roundoff) | {last: 100 * PRECISIONS["float32"].roundoff}
    floor = referee.judge(
        *sides("float32", (2.0**-24, 2.0**-24)), "float32", Noise(noise("float32").ulp, roundoff)
    ).floor
    assert floor["delta/norm.var"] == floor[last]
    assert floor["delta/norm.mean"] == floor[f"step{made_up.STEPS}/buffer/norm.mean"] < floor[last]


def test_a_small_change_may_be_stored_one_roundoff_apart():
    """As mobilenet-v2's of a scale at its certificate's rate, of which one element in 576 was rounded the other way."""
    update, gradient = "step2/update/norm.scale", "step2/gradient/norm.scale"
    change = np.full(576, 2.0**-25)
    record = {"initial/norm.scale": np.ones(576), update: change, gradient: change}
    flipped = ULP64 / float(np.linalg.norm(change))
    assert flipped > gates.SEMANTIC.limit
    found = Noise({update: 0.0, gradient: 0.0}).resolve({update: flipped, gradient: flipped}, record)
    assert found[update] < gates.SEMANTIC.limit < found[gradient]
    assert Noise({update: 0.0}).resolve({update: 1e-7}, record)[update] > gates.SEMANTIC.limit


def test_what_only_rounding_makes_other_than_zero_is_not_judged():
    """As of a gate with one unit, whose ReLU opens in a few of the perturbed runs alone."""
    lost = ("step1/gradient/dense.kernel", "step1/update/dense.kernel", "delta/dense.kernel")
    zero = {name: np.zeros_like(EXACT[name]) for name in lost}
    same: Records = dict.fromkeys(("float64", "float32", "bfloat16"), EXACT | zero)
    wrong = {**same, "bfloat16": EXACT | zero | {"step1/logits": 2 * EXACT["step1/logits"]}}
    opened = Noise(dict.fromkeys(NAMES, ULP64), dict.fromkeys(NAMES, 2.0**-8) | dict.fromkeys(lost, math.inf))
    found = referee.judge(same, same, "bfloat16", opened)
    assert set(NAMES) - found.floor.keys() == {
        "step1/update/dense.kernel"
    }  # of the others, errors of their own are seen
    assert all(map(math.isfinite, found.floor.values()))
    assert found.gate.passed
    assert referee.judge(same, wrong, "bfloat16", opened).failing == ["step1/logits"]
    moved = Noise({"a": math.inf, "b": 0.0}).resolve({"a": math.inf, "b": math.inf}, {})
    assert moved == {"a": 0.0, "b": math.inf}


CHANGES = ("step1/update/dense.bias", "step2/update/dense.bias", "delta/dense.bias")


def test_a_change_is_resolved_no_better_than_its_gradient_in_any_step():
    kept = ("step1/update/dense.kernel", "step1/buffer/dense.bias", "step1/gradient/dense.bias")
    noise = dict.fromkeys((*CHANGES, *kept), 0.0) | {"step2/gradient/dense.bias": 1e-6}
    found = Noise(noise).resolve(dict.fromkeys(noise, 1e-8), {})
    assert {name: found[name] for name in CHANGES} == pytest.approx(dict.fromkeys(CHANGES, 1e-13))
    assert {name: found[name] for name in kept} == dict.fromkeys(kept, 1e-8)


def test_the_floor_of_an_update_is_that_of_its_gradient_where_that_cancels():
    records = sides("bfloat16", (2.0**-8, 2.0**-8))
    resolved = referee.judge(*records, "bfloat16", noise("bfloat16"))
    found = referee.judge(*records, "bfloat16", noise("bfloat16", **{"step1/gradient/dense.kernel": 1.0}))
    assert found.floor["step1/update/dense.kernel"] == pytest.approx(DEPTH * 2.0**-8 / 2.0**-52)
    assert found.floor["step1/update/first.kernel"] == resolved.floor["step1/update/first.kernel"] < 1


CANCELS = "step1/gradient/norm.scale"


def off(error: float, name: str) -> tuple[Records, Records]:
    """Return two sides in float64 and float32, the contender's tensor `name` off by `error` in both."""
    baseline, contender = sides("float32", (2.0**-24, 2.0**-24))

    def moved(array: Array) -> Array:
        return (array * (1 + error)).astype(array.dtype)

    return baseline, {key: made_up.changed(arrays, moved, name) for key, arrays in contender.items()}


@pytest.mark.parametrize(("error", "passes"), [(8e-8 * DEPTH, True), (2e-7 * DEPTH, False)])
def test_a_tensor_that_float64_cannot_resolve_may_be_off_by_ten_times_its_noise(error: float, passes: bool):
    conditioned = noise("float64", **{"gradient/norm.scale": 1e-8})
    made = certificate.judge(*off(error, CANCELS), "float64", conditioned)
    assert made.gates[0].passed == passes
    assert made.gates[0].worst_tensor == CANCELS
    if not passes:
        assert (made.first_mismatch or "").startswith(CANCELS)


def test_a_well_conditioned_tensor_off_by_as_much_is_not_forgiven():
    conditioned = noise("float64", **{"gradient/norm.scale": 1e-8})
    made = certificate.judge(*off(8e-8, "step1/gradient/first.kernel"), "float64", conditioned)
    assert not made.gates[0].passed
    assert (made.first_mismatch or "").startswith("step1/gradient/first.kernel (e64 8.0e-08")


def sign_like(record: Arrays, gradient: float) -> Arrays:
    """Return the record with Adam's first updates, signs of gradients, of which one is as small as given."""
    found = dict(record)
    for step in range(1, made_up.STEPS + 1):
        values = record[f"step{step}/gradient/strided.kernel"].copy()
        values[0, 0, 0, 0] = gradient
        found |= {f"step{step}/gradient/strided.kernel": values, f"step{step}/update/strided.kernel": np.sign(values)}
    return found


@pytest.mark.parametrize(("gradient", "excused"), [(1e-7, True), (LOST, True), (1e-3, False)])
def test_an_update_may_be_off_where_its_gradient_is_lost_in_noise(gradient: float, excused: bool):
    precision, exact = "float32", sign_like(EXACT, gradient)
    wrong = {
        name: np.where(np.arange(array.size).reshape(array.shape) == 0, -array, array)
        if name == "step1/update/strided.kernel"
        else array
        for name, array in exact.items()
    }
    baseline = {"float64": exact, precision: made_up.rounded(exact, 2.0**-24, dtype="float32")}
    contender = {"float64": exact, precision: made_up.rounded(wrong, 2.0**-24, seed=1, dtype="float32")}
    found = referee.judge(baseline, contender, precision, noise(precision))
    assert found.contender["step1/update/strided.kernel"] > 0.1
    assert found.gate.passed is excused
    assert found.failing == ([] if excused else ["step1/update/strided.kernel"])


@pytest.mark.parametrize("normalised", [True, False])
def test_a_gradient_of_exactly_zero_leaves_a_full_step_open_only_to_a_rule_that_divides_by_its_size(normalised: bool):
    name, exact = "step1/update/strided.kernel", sign_like(EXACT, 0.0)
    traced = exact[name].copy()
    assert traced[0, 0, 0, 0] == 0
    traced[0, 0, 0, 0] = 0.2
    low = made_up.rounded(exact, 2.0**-24, dtype="float32")
    sides = {"float64": exact, "float32": low}, {"float64": exact, "float32": {**low, name: traced.astype(np.float32)}}
    found = referee.judge(*sides, "float32", noise("float32"), normalised=normalised)
    assert found.contender[name] > 1e-3
    assert found.failing == ([] if normalised else [name])


@pytest.mark.parametrize(("normalised", "step", "passes"), [(True, 2, True), (False, 2, False), (True, 1, False)])
def test_steps_after_an_undecided_update_start_from_parameters_that_are_off_by_it(
    normalised: bool, step: int, passes: bool
):
    exact, name = sign_like(EXACT, 0.0), f"step{step}/activation/dense"
    low = made_up.rounded(exact, 2.0**-24, dtype="float32")
    moved = {**low, name: low[name] * np.float32(1 + 1e-3)}
    found = referee.judge(
        {"float64": exact, "float32": low},
        {"float64": exact, "float32": moved},
        "float32",
        noise("float32"),
        normalised=normalised,
    )
    assert found.failing == ([] if passes else [name])


@pytest.mark.parametrize(
    ("precision", "tensor", "passes"),
    [
        ("bfloat16", "step2/gradient/dense.kernel", True),
        ("float16", "step2/gradient/dense.kernel", True),
        ("tf32", "step2/gradient/dense.kernel", False),
        ("bfloat16", "step2/gradient/norm.scale", False),
        ("bfloat16", "step2/loss", False),
    ],
)
def test_a_gradient_without_noise_is_still_rounded_where_it_is_stored(precision: str, tensor: str, passes: bool):
    still = noise(precision)
    assert still.roundoff is not None
    still = Noise(still.ulp, {name: 0.0 if name == tensor else value for name, value in still.roundoff.items()})
    still = Noise({name: 0.0 if name == tensor else value for name, value in still.ulp.items()}, still.roundoff)
    low = made_up.rounded(EXACT, 2.0**-24, dtype="float32")
    stored = {**low, tensor: low[tensor] * np.float32(1 + PRECISIONS[precision].roundoff)}
    found = referee.judge({"float64": EXACT, precision: stored}, {"float64": EXACT, precision: low}, precision, still)
    assert found.failing == ([] if passes else [tensor])


def summed(images: Array, kernel: Array) -> Array:
    """Return images @ kernel in float32, one product added after the other."""
    products = images.astype(np.float32)[:, :, None] * kernel.astype(np.float32)
    return np.cumsum(products, axis=1, dtype=np.float32)[:, -1]


@pytest.mark.parametrize(("bits", "passes"), [(23, True), (10, False)], ids=["float32", "TF32"])
def test_a_float32_sum_may_be_taken_one_term_after_the_other_but_not_of_rounded_terms(bits: int, passes: bool):
    random = np.random.default_rng(0)
    images, kernel = random.normal(size=(8, 6272)), random.normal(size=(6272, 10))
    exact = images @ kernel
    rounded = [np.round(each * 2.0**bits) * 2.0**-bits for each in (images, kernel)]
    moved = images * (1 + PRECISIONS["float32"].roundoff * random.choice((-1.0, 1.0), images.shape))
    name = "step1/activation/dense"
    floor = {name: float(np.linalg.norm(moved @ kernel - exact) / np.linalg.norm(exact))}
    reference = {"initial/dense.kernel": kernel, name: exact}
    low = {"initial/dense.kernel": kernel.astype(np.float32), name: summed(*rounded)}
    sides = {"float64": reference, "float32": low}
    found = referee.judge(sides, sides, "float32", Noise({name: ULP64}, floor))
    assert found.gate.passed == passes
    assert found.baseline[name] > 10 * floor[name]  # more than the noise of the inputs, in either case


def test_the_gradient_of_a_kernel_is_a_sum_over_all_pixels():
    name, gradient = "step1/activation/conv", "step1/gradient/conv.kernel"
    record = {"initial/conv.kernel": np.ones((3, 3, 1, 4)), name: np.ones((8, 20, 20, 4)), gradient: np.ones(36)}
    noise: dict[str, float] = dict.fromkeys((name, gradient), PRECISIONS["float32"].roundoff)
    sides = {"float64": record, "float32": record}
    found = referee.judge(sides, sides, "float32", Noise(dict.fromkeys(noise, ULP64), noise))
    assert found.floor[name] == PRECISIONS["float32"].roundoff * 1
    assert found.floor[gradient] == pytest.approx(PRECISIONS["float32"].roundoff * 0.2 * math.sqrt(8 * 20 * 20 / 2))


def test_the_statistics_of_batch_norm_are_sums_over_all_pixels():
    """TorchInductor's on a CPU are; that of the state after the run is the last step's."""
    name, buffer = "step1/activation/norm", "step1/buffer/norm.mean"
    initial = {"initial/conv.kernel": np.ones((3, 3, 1, 4)), "initial/norm.mean": np.zeros(4)}
    record = {**initial, name: np.ones((8, 20, 20, 4)), buffer: np.ones(4), "delta/norm.mean": np.ones(4)}
    noise: dict[str, float] = dict.fromkeys((name, buffer, "delta/norm.mean"), PRECISIONS["float32"].roundoff)
    sides = {"float64": record, "float32": record}
    found = referee.judge(sides, sides, "float32", Noise(dict.fromkeys(noise, ULP64), noise))
    wanted = PRECISIONS["float32"].roundoff * 0.2 * math.sqrt(8 * 20 * 20 / 2)
    assert [found.floor[each] for each in (buffer, "delta/norm.mean")] == pytest.approx([wanted, wanted])


@pytest.mark.parametrize(
    ("baseline", "contender", "said"),
    [
        (2.51e-7, 2.52e-7, "the errors of both sides are alike (2.5e-07), rounding"),
        (2.4e-7, 2.5e-7, "the contender's error is larger (2.5e-07 against 2.4e-07), rounding"),
        (3e-5, 2.5e-7, "the baseline's error is larger (3.0e-05 against 2.5e-07), more than rounding"),
    ],
)
def test_a_larger_error_is_one_that_its_digits_show(baseline: float, contender: float, said: str) -> None:
    found = Referee({"step1/loss": baseline}, {"step1/loss": contender}, {"step1/loss": 1e-7})
    assert found.describe_owner("step1/loss") == f"step1/loss: {said}"
