"""Refusals of users' flax models, and their messages."""

import numpy as np
import pytest

from compare.base.interface import Batch, Refused
from tests.own import jax_pairs


@pytest.mark.parametrize(
    ("factory", "what", "reason"),
    [
        ("nowhere", None, "has no 'nowhere'"),
        ("wrong_type", None, r"returns a jaxlib\S+ArrayImpl; allowed: a factory that returns a flax.linen or flax.nnx"),
        ("returns_class", None, "returns the class ResNet, not a model made of it"),
        ("anything", "weight norm", "is a flax WeightNorm, and samestep matches linen's with a scale"),
        ("anything", "text", "the model returns a str; allowed: arrays, and tuples, dictionaries or dataclasses"),
        ("anything", "raises", "forward pass raised ValueError: no such thing"),
        ("anything", "exits", "forward pass raised SystemExit: 3"),
        ("anything", "random", "draws random numbers in training"),
        ("anything", "collection", "changes a variable in training that is no statistic: .*memory"),
        ("anything", None, "needs 'what'; give it with --model-args what=VALUE"),
        ("remembering", None, "changes 'seen', a Variable; allowed: to change a BatchStat"),
        ("noisy", None, "draws random numbers in training"),
        ("not_finite", None, "head/kernel contains NaN or infinity"),
    ],
)
def test_a_model_that_cannot_be_compared_is_refused(factory: str, what: str | None, reason: str):
    model = jax_pairs.model(factory) if what is None else jax_pairs.model(factory, what=what)
    with pytest.raises(Refused, match=reason) as refused:
        jax_pairs.traced(model)
    assert str(refused.value).startswith("tests/own/flax_models.py")


def test_a_pair_without_names_is_refused():
    with pytest.raises(Refused, match="has not been matched"):
        jax_pairs.opened(jax_pairs.model("flagged"))


@pytest.mark.parametrize(("what", "precision"), [("float32", "float64"), ("", "bfloat16")])
def test_layers_get_the_dtype_of_the_run(what: str, precision: str):
    session = jax_pairs.opened(jax_pairs.named(jax_pairs.model("anything", what=what)), precision=precision)
    session.feed([Batch(np.ones((4, 9, 9, 3), np.float32), np.zeros(4, np.int32))])
    session.run(1)
    assert set(session.settings()["layer_dtypes"].values()) == {precision}


def test_a_table_that_names_what_the_model_has_not_is_refused():
    model = jax_pairs.named(jax_pairs.model("flagged"))
    model.arguments["names"]["jax"]["variables"][0]["own"] = "conv/kernels"
    with pytest.raises(Refused, match="the model has no 'conv/kernels', which the pair's table names"):
        jax_pairs.opened(model)
