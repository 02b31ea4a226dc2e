"""What a pair says of a certificate that failed: the layer's settings, and the cause that they show."""

from dataclasses import replace

import pytest

from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.certificate import Certificate
from compare.agreement.gates import Gate
from compare.user_models.match_report import Pairing
from compare.user_models.matching import Matching, match
from tests.unit.traces import Said, batch_norm, convolution, dense, jax, torch

FAILED = Certificate((Gate("semantic", 1.0, 1e-10, False, None),), "it differs", cause="arithmetic")


def _matching(*different: str) -> Matching:
    """Return the match of two models. These batch norms have other epsilons."""

    def layers(epsilon: float) -> list[Said]:
        norms = {name: {"epsilon": epsilon if name in different else 1e-5} for name in ("one", "one.two", "three")}
        return [
            convolution("first", (3, 3, 3, 4), [""]),
            batch_norm("one", 4, ["first"], **norms["one"]),
            batch_norm("one.two", 4, ["one"], **norms["one.two"]),
            batch_norm("three", 4, ["one.two"], **norms["three"]),
            dense("last", (4, 10), ["three"]),
        ]

    return match(torch(*layers(1e-5)), jax(*layers(1e-6)))


def _explained(tensor: str | None, native: Matching, *resized: Matching) -> tuple[str | None, list[str]]:
    """Return the cause, and torch's names of the layers whose settings the notes show."""
    made = Pairing({}, native, resized=resized).explain(replace(FAILED, tensor=tensor))
    shown = [note.split()[1] for note in made.notes if note.startswith("torch's ")]
    return made.cause, shown


@pytest.mark.parametrize(
    "tensor",
    ["step1/activation/one.two", "step1/gradient/one.two.scale", "delta/one.two.bias", "step2/buffer/one.two.var"],
)
def test_a_layer_that_differs_where_the_certificate_fails_is_the_cause(tensor: str) -> None:
    cause, shown = _explained(tensor, _matching("one", "one.two", "three"))
    assert (cause or "").startswith("epsilon")
    assert shown == ["one.two"]


@pytest.mark.parametrize("tensor", ["step1/logits", "evaluation/logits", "step1/activation/last", None])
def test_the_nearest_layer_before_is_shown_and_the_cause_stays(tensor: str | None) -> None:
    assert _explained(tensor, _matching("one.two")) == ("arithmetic", ["one.two"])
    assert _explained(tensor, _matching("three"), _matching("one")) == ("arithmetic", ["three"])


def test_a_layer_that_differs_alone_with_equal_settings_is_the_cause() -> None:
    made = Pairing({}, _matching(), different={"first": 0.5})
    assert "first computes something else" in (
        made.explain(replace(FAILED, tensor="step1/activation/first")).cause or ""
    )
    for tensor in ("step1/activation/first.input", "step1/activation/one", "step1/gradient/first.kernel"):
        assert made.explain(replace(FAILED, tensor=tensor)).cause == "arithmetic"


def test_a_layer_before_that_training_does_not_feel_is_not_shown() -> None:
    layers = [
        convolution("first", (3, 3, 3, 4), [""]),
        batch_norm("one", 4, ["first"], epsilon=1e-5),
        batch_norm("two", 4, ["one"], running_variance="unbiased"),
        dense("last", (4, 10), ["two"]),
    ]
    other = [*layers[:2], batch_norm("two", 4, ["one"], running_variance="biased"), layers[3]]
    assert _explained("step1/logits", match(torch(*layers), jax(*other))) == ("arithmetic", [])
    other[1] = batch_norm("one", 4, ["first"], epsilon=1e-6)
    assert _explained("step1/logits", match(torch(*layers), jax(*other))) == ("arithmetic", ["one"])


@pytest.mark.parametrize(
    ("tensor", "allowed", "told"),
    [
        ("step1/gradient/norm.bias", (), False),  # a running variance changes no gradient
        ("step2/buffer/norm.var", (), True),
        ("delta/norm.var", (), True),
        ("step2/buffer/norm.mean", (), False),
        ("step2/buffer/norm.var", (RUNNING_VARIANCE,), False),  # it was accepted, so it is not what differs
    ],
)
def test_a_running_variance_is_the_cause_only_where_it_shows_and_is_not_allowed(
    tensor: str, allowed: tuple[str, ...], told: bool
) -> None:
    layers = [convolution("first", (3, 3, 3, 4), [""]), batch_norm("norm", 4, ["first"], running_variance="unbiased")]
    other = [layers[0], batch_norm("norm", 4, ["first"], running_variance="biased")]
    made = Pairing({}, match(torch(*layers), jax(*other)), allowed=allowed).explain(replace(FAILED, tensor=tensor))
    assert ("running variance" in (made.cause or "")) is told
    assert ["--allow running-variance" in repair for repair in made.repairs] == [True] * (not allowed)


@pytest.mark.parametrize(("semantic", "told"), [(True, True), (False, False)])
def test_how_a_variance_is_computed_explains_rounding_alone(semantic: bool, told: bool) -> None:
    layers = [convolution("first", (3, 3, 3, 4), [""]), batch_norm("norm", 4, ["first"], fast_variance=False)]
    other = [layers[0], batch_norm("norm", 4, ["first"], fast_variance=True)]
    gates = (Gate("semantic", 1.0, 1e-10, semantic, None), Gate("precision", 1.0, 1e-10, False, None))
    failed = Certificate(gates, "it differs", cause="arithmetic", tensor="step1/activation/norm")
    made = Pairing({}, match(torch(*layers), jax(*other))).explain(failed)
    assert (made.cause != "arithmetic") is told
    assert len(made.repairs) == told
    assert any(note.startswith("harmless, norm: flax computes the variance") for note in made.notes) is not told


def test_what_differs_at_another_size_only_is_found() -> None:
    cause, shown = _explained("step1/activation/one", _matching(), _matching("one", "three"))
    assert (cause or "").startswith("epsilon")
    assert shown == ["one"]


def test_layers_behind_the_first_mismatch_are_no_reason() -> None:
    assert _explained("step1/activation/first", _matching("one", "three")) == ("arithmetic", [])


def test_a_certificate_that_passed_stays_as_it_is() -> None:
    passed = Certificate((), None)
    assert Pairing({}, _matching("one")).explain(passed) == passed


def test_a_map_of_the_user_s_is_named_where_something_differs() -> None:
    made = Pairing({}, _matching(), mapped=2).explain(replace(FAILED, tensor="step1/logits"))
    assert "the weights map names 2 variables: an entry of it may be wrong" in made.notes
    assert not any("weights map" in note for note in Pairing({}, _matching()).explain(FAILED).notes)


def test_a_failed_certificate_has_repairs_with_its_own_cause_first() -> None:
    layers = [
        convolution("first", (3, 3, 3, 4), [""]),
        batch_norm("one", 4, ["first"], epsilon=1e-5),
        batch_norm("two", 4, ["one"], momentum=0.1),
    ]
    other = [layers[0], batch_norm("one", 4, ["first"], epsilon=1e-6), batch_norm("two", 4, ["one"], momentum=0.5)]
    pairing = Pairing({}, match(torch(*layers), jax(*other)))
    made = pairing.explain(replace(FAILED, tensor="step1/buffer/two.mean"))
    assert (made.cause or "").startswith("momentum")
    assert [repair.partition(":")[0] for repair in made.repairs] == ["two", "one"]
    assert made.repairs[1].endswith("equal with epsilon=1e-5 in flax, or eps=1e-6 in torch")
    assert pairing.explain(Certificate((), None)).repairs == ()


def test_all_differences_come_at_once_with_their_cures() -> None:
    def layers(epsilon: float, momentum: float, variance: str) -> list[Said]:
        norms = {"epsilon": epsilon, "momentum": momentum, "running_variance": variance}
        return [
            convolution("first", (3, 3, 3, 4), [""]),
            batch_norm("one", 4, ["first"], **norms),
            batch_norm("two", 4, ["one"], **norms),
            dense("last", (4, 10), ["two"]),
        ]

    found = match(torch(*layers(1e-5, 0.1, "unbiased")), jax(*layers(1e-6, 0.01, "biased")))
    head, *lines = Pairing({}, found).list_differences()
    assert head == "all differences between matched layers, 2 harmful and 1 harmless:"
    assert [line.partition(": ")[0] for line in lines] == [
        "  harmful, one, two",
        "  harmful, one, two",
        "  harmless, one, two",
    ]
    assert "equal with epsilon=1e-5 in flax" in lines[0] + lines[1]
    assert "momentum=0.9 in flax" in lines[0] + lines[1]
    assert len(Pairing({}, found, allowed=(RUNNING_VARIANCE,)).list_differences()) == 3


def test_a_momentum_explains_statistics_and_no_activation() -> None:
    layers = [convolution("first", (3, 3, 3, 4), [""]), batch_norm("norm", 4, ["first"], momentum=0.1)]
    other = [layers[0], batch_norm("norm", 4, ["first"], momentum=0.5)]
    found = match(torch(*layers), jax(*other))
    assert _explained("step1/activation/norm.input", found)[0] == "arithmetic"
    assert _explained("step1/activation/norm", found)[0] == "arithmetic"
    assert (_explained("step1/buffer/norm.mean", found)[0] or "").startswith("momentum")
