"""The race of tunings on made-up step times."""

import math
from collections.abc import Callable, Mapping

import pytest

from compare.base import compiler_flags
from compare.base.interface import Refused
from compare.base.knobs import Value
from compare.machine import variables
from compare.settings import tunings
from compare.studies.race import Race, Track

Cost = Callable[[Mapping[str, Value]], float]


def run(track: Track, cost: Cost, most: int = 20, size: int | None = None) -> Race:
    """Race with the step times that `cost` gives for the knobs. An infinite time is a failure.

    Only the first `size` tunings of a sweep are timed.
    """
    race = Race(track)
    for _ in range(most):
        sweep = race.plan_sweep()[:size]
        if not sweep:
            return race
        seconds = {tuning: cost(track.resolve(tuning) or {}) for tuning in sweep}
        first = next((time for time in seconds.values() if math.isfinite(time)), 1.0)
        race.note(sweep, {tuning: time / first for tuning, time in seconds.items() if math.isfinite(time)})
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


def test_a_gain_within_the_margin_does_not_pass_the_leader():
    race = Race(TORCH, leader="compiled", times={"compiled": 0.5, "stock": 0.497, "compiled+channels-last": 0.48})
    assert race.list_fastest() == ["compiled+channels-last", "compiled", "stock"]


def test_it_begins_with_all_knobs_together():
    alone, *more = TORCH.list_starts()
    together = [TORCH.resolve(name) or {} for name in more]
    assert (alone, len(together), together[0]["compile"]) == ("compiled", 1, True)
    assert together[0]["channels-last"]
    assert together[0]["graph-capture"]
    assert together[0]["compiler-flags"] == "none"


def test_it_leaves_the_compiler_out_where_eager_is_faster():
    track = Track("torch", "cpu", "cifar-cnn", "float32")
    race = run(track, weigh(compile=1.5, channels_last=0.7))
    knobs = track.resolve(race.leader or "") or {}
    assert (knobs["compile"], knobs["channels-last"]) == (False, True)


def test_on_a_gpu_eager_begins_where_nothing_compiled_trains():
    race = run(TORCH, lambda knobs: math.inf if knobs["compile"] else 0.9 if knobs["channels-last"] else 1.0)
    assert (TORCH.resolve(race.leader or "") or {})["channels-last"]


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


def test_flags_are_raced_one_by_one_and_reach_the_child_and_the_result() -> None:
    track = Track("jax", "cpu", "cifar-cnn", "float32")
    neighbours = track.list_neighbours("compiled")
    assert [name for name in neighbours if "flags" in name] == [
        "compiled+compiler-flags=fast-math",
        "compiled+compiler-flags=concurrent",
    ]
    assert "compiled+kept-heap" in neighbours
    assert not [name for name in track.list_starts() if "flags" in name]
    knobs = track.resolve("compiled+compiler-flags=fast-math+kept-heap")
    assert knobs is not None
    added = variables.make_child_environment("jax", knobs, "cpu", False, {"XLA_FLAGS": "--own"})
    assert added["XLA_FLAGS"].split() == ["--xla_cpu_enable_fast_math=true", "--own"]
    assert compiler_flags.read_settings("jax", "cpu", added) == {"compiler-flags": "fast-math", "kept-heap": True}
    assert compiler_flags.read_settings("jax", "cpu", {}) == {"compiler-flags": "none", "kept-heap": False}


@pytest.mark.parametrize(
    ("backend", "tuning", "device", "reason"),
    [
        ("torch", "compiled+compiler-flags=fast-math", "cpu", "torch has no compiler-flags=fast-math on cpu"),
        ("jax", "compiled+compiler-flags=fast-math", "cuda", "allowed: none, latency-hiding, cublaslt"),
        ("torch", "stock+compiler-flags=cpp-wrapper", "cpu", "compiler-flags needs compile in torch"),
        ("torch", "stock+kept-heap", "cuda", "kept-heap needs --device cpu"),
        ("jax", "compiled+compiler-flags=o3", "cpu", "compiler-flags=o3 is not allowed"),
    ],
)
def test_flags_that_a_side_does_not_have_are_refused(backend: str, tuning: str, device: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        tunings.resolve(backend, tuning, device, "cifar-cnn")


def test_a_race_of_short_sweeps_finds_the_same_knobs():
    track = Track("torch", "cpu", "cifar-cnn", "float32")
    cost = weigh(compile=0.8, channels_last=0.9, kept_heap=0.95, fused_optimizer=1.05)
    race = run(track, cost, most=60, size=2)
    assert track.resolve(race.leader or "") == track.resolve(run(track, cost).leader or "")
    assert race.ended == "nothing left wins by 1 %"
    race.stop("over")
    assert not race.untried


def test_a_race_knows_what_it_has_not_tried():
    race = Race(Track("torch", "cpu", "cifar-cnn", "float32"))
    starts = race.plan_sweep()
    race.note(starts[:2], {starts[0]: 1.0, starts[1]: 0.8})
    assert race.leader == starts[1]
    assert race.plan_sweep() == [starts[1], *starts[2:]]
    race.stop("the time is over")
    assert race.plan_sweep() == []
    untried = list(race.untried)
    assert untried[: len(starts) - 2] == starts[2:]
    assert "compiled+channels-last" in untried
    assert not {*starts[:2]} & {*untried}
