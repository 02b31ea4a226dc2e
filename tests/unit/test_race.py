"""The race of tunings on made-up step times."""

import math
from collections.abc import Callable, Mapping

import pytest

from compare.base.knobs import Value
from compare.studies.race import Race, Track

Cost = Callable[[Mapping[str, Value]], float]


def run(track: Track, cost: Cost, most: int = 20) -> Race:
    """Race with the step times that `cost` gives for the knobs. An infinite time is a failure."""
    race = Race(track)
    for _ in range(most):
        heat = race.plan_heat()
        if not heat:
            return race
        seconds = {tuning: cost(track.resolve(tuning) or {}) for tuning in heat}
        first = next((time for time in seconds.values() if math.isfinite(time)), 1.0)
        race.note(heat, {tuning: time / first for tuning, time in seconds.items() if math.isfinite(time)})
    raise AssertionError("the race does not end")


TORCH = Track("torch", "cuda", "cifar-cnn", "bfloat16")
JAX = Track("jax", "cuda", "cifar-cnn", "bfloat16")


def weigh(**factors: float) -> Cost:
    """Return a cost: the product of the factors of all knobs that are on."""

    def cost(knobs: Mapping[str, Value]) -> float:
        total = 1.0
        for name, value in knobs.items():
            total *= (
                factors.get(name.replace("-", "_"), 1.0)
                if value is True or (value is not False and value != 1)
                else 1.0
            )
        return total

    return cost


def test_it_finds_every_knob_that_helps_and_no_other():
    race = run(TORCH, weigh(compile=0.8, channels_last=0.9, kernel_search=0.95, fused_optimizer=1.05))
    knobs = TORCH.resolve(race.leader or "") or {}
    assert knobs["compile"]
    assert knobs["channels-last"]
    assert knobs["kernel-search"]
    assert not knobs["fused-optimizer"]
    assert race.ended == "nothing left wins by 1 %"


def test_it_leaves_the_compiler_out_where_eager_is_faster():
    race = run(Track("torch", "cpu", "cifar-cnn", "float32"), weigh(compile=1.5, channels_last=0.7))
    assert race.leader in ("stock+channels-last", "stock+channels-last+fused-optimizer")


def test_it_reaches_captured_steps_of_several():
    def cost(knobs: Mapping[str, Value]) -> float:
        return 1.0 - 0.02 * int(knobs["steps-per-dispatch"]) if knobs["graph-capture"] else 1.0

    for track in (TORCH, JAX):
        knobs = track.resolve(run(track, cost).leader or "") or {}
        assert knobs["graph-capture"]
        assert knobs["steps-per-dispatch"] == 24


def test_a_tuning_that_fails_never_leads():
    race = run(JAX, lambda knobs: math.inf if knobs["graph-capture"] else 1.0)
    assert not (JAX.resolve(race.leader or "") or {})["graph-capture"]


def test_it_ends_where_nothing_trains():
    race = run(JAX, lambda _: math.inf)
    assert race.leader is None
    assert race.ended


def test_a_gain_below_one_per_cent_is_none():
    race = run(TORCH, weigh(channels_last=0.995))
    assert race.leader in TORCH.list_starts()


@pytest.mark.parametrize("track", [TORCH, JAX, Track("jax", "cpu", "digits-cnn", "float32")])
def test_the_shortest_form_has_the_same_knobs(track: Track):
    for tuning in track.list_starts():
        knobs = track.resolve(tuning)
        assert knobs is not None
        assert track.resolve(track.write(knobs)) == knobs
    neighbours = track.list_neighbours("compiled")
    assert len({str(track.resolve(name)) for name in neighbours}) == len(neighbours)


def test_only_a_limit_of_memory_tries_rematerialisation():
    limited = Track("torch", "cuda", "resnet50", "bfloat16", saves_memory=True)
    assert any("rematerialisation" in name for name in limited.list_neighbours("compiled"))
    assert not any("rematerialisation" in name for name in TORCH.list_neighbours("compiled"))
