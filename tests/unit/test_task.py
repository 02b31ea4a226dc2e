"""Tasks of a user's pair: outputs of both sides found, inputs and targets made and taken apart."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compare.base import task
from compare.base.interface import Refused
from compare.base.task import Output, Task
from compare.base.trace import Trace
from compare.base.workloads import Workload
from compare.data import datasets
from compare.settings import pair_spec
from compare.user_models import outputs


def make_trace(**shapes: tuple[int, ...]) -> Trace:
    named = {name.removeprefix("_"): shape for name, shape in shapes.items()}
    return Trace("", (), next(iter(named.values())), (), (), (), (), "", outputs=named)


def make_pair(**changes: Any) -> Workload:
    return pair_spec.make_workload("a.py:f", "b.py:f", **({"image": "8x6x3", "classes": 4} | changes))


def complete(workload: Workload, torch: Trace, jax: Trace) -> Task | None:
    return outputs.complete(workload, {"torch": torch, "jax": jax}).task


def test_plain_classes_need_no_task():
    assert complete(make_pair(), make_trace(_=(2, 4)), make_trace(_=(2, 4))) is None


def test_a_class_a_pixel_is_channels_first_in_torch():
    made = complete(make_pair(), make_trace(_=(2, 4, 8, 6)), make_trace(_=(2, 8, 6, 4)))
    assert made == Task((Output(shape=(8, 6, 4), is_channels_first=True),))
    assert made
    assert made.first.target_shape == (8, 6)


def test_rows_of_classes_lie_alike():
    made = complete(make_pair(), make_trace(_=(2, 9, 4)), make_trace(_=(2, 9, 4)))
    assert made == Task((Output(shape=(9, 4)),))


@pytest.mark.parametrize(("image", "is_channels_first"), [("8x6x3", False), (["x=6x4"], True)])
def test_equal_sizes_are_read_as_the_inputs_are(image: Any, is_channels_first: bool):
    shapes = make_trace(_=(2, 4, 4)), make_trace(_=(2, 4, 4))
    made = complete(make_pair(image=image), *shapes)
    assert made is not None
    assert made.first.is_channels_first == is_channels_first


def test_one_logit_may_be_a_column_on_one_side():
    made = complete(make_pair(loss="bce", classes=None), make_trace(_=(2, 1)), make_trace(_=(2,)))
    assert made is not None
    assert made.first.shape == ()


def test_outputs_are_found_by_name_or_in_order():
    asked = make_pair(loss=["main=cross-entropy", "side=mse"])
    torch, jax = make_trace(main=(2, 4), side=(2, 3)), make_trace(side=(2, 3), main=(2, 4))
    made = complete(asked, torch, jax)
    assert made is not None
    assert [(each.name, each.loss, each.shape) for each in made.outputs] == [
        ("main", "cross-entropy", (4,)),
        ("side", "mse", (3,)),
    ]
    in_order = complete(asked, torch, make_trace(a=(2, 4), b=(2, 3)))
    assert in_order is not None
    assert [each.jax for each in in_order.outputs] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "torch", "jax", "message"),
    [
        ({}, {"_": (2, 5)}, {"_": (2, 5)}, "allowed: --classes 5, or another --loss"),
        ({}, {"_": (2, 1)}, {"_": (2, 1)}, "allowed: --loss bce without --classes for one logit, or"),
        ({}, {"_": (2, 4)}, {"a": (2, 4), "b": (2, 1)}, "the models return different outputs"),
        ({"loss": "mse"}, {"_": (2, 3, 8, 6)}, {"_": (2, 8, 6, 2)}, "channels first in torch and last in flax"),
        ({"loss": "mse,target=input"}, {"_": (2, 3)}, {"_": (2, 3)}, "outputs of the input's shape"),
        ({"loss": ["x=mse"]}, {"a": (2, 3)}, {"a": (2, 3)}, "no output has that name; there are: a"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(changes: Any, torch: Any, jax: Any, message: str):
    with pytest.raises(Refused, match=message):
        complete(make_pair(**changes), make_trace(**torch), make_trace(**jax))


def test_targets_are_made_for_each_loss_and_follow_from_the_seed():
    image = ["image=8x6x3", "t=int:7"]
    asked = make_pair(image=image, loss=["a=cross-entropy", "b=l1", "c=bce", "d=mse,target=input"])
    shapes = {"a": (2, 8, 6, 4), "b": (2, 4, 3, 2), "c": (2,), "d": (2, 8, 6, 3)}
    torch = {name: (s[0], s[-1], *s[1:-1]) if len(s) > 2 else s for name, s in shapes.items()}
    workload = outputs.complete(asked, {"torch": make_trace(**torch), "jax": make_trace(**shapes)})
    made, again = (datasets.load(workload, folder=None, seed=3, batch_size=4) for _ in range(2))
    other = datasets.load(workload, folder=None, seed=4, batch_size=4)
    assert np.array_equal(made.train.labels, again.train.labels)
    assert not np.array_equal(made.train.labels, other.train.labels)
    assert workload.task is not None
    parts = {output.name: values for output, values in task.unpack_targets(workload.task, made.train.labels)}
    assert {name: values.shape[1:] for name, values in parts.items()} == {
        "a": (8, 6),
        "b": (4, 3, 2),
        "c": (),
        "d": (8, 6, 3),
    }
    assert set(np.unique(parts["a"])) == {0, 1, 2, 3}
    assert set(np.unique(parts["c"])) <= {0, 1}
    pixels, steps = task.unpack_inputs(workload.model.inputs, made.train.images, lambda _, values: values)
    assert np.array_equal(pixels, parts["d"])
    assert set(np.unique(steps)) <= set(range(7))


def test_results_are_flattened_and_others_refused():
    found = task.flatten_outputs({"a": 1.5, "b": (2.5, [3.5, None])}, lambda value: isinstance(value, float))
    assert found == {"a": 1.5, "b.0": 2.5, "b.1.0": 3.5}
    with pytest.raises(Refused, match="returns a str at a"):
        task.flatten_outputs({"a": "text"}, lambda value: isinstance(value, float))


def test_a_model_may_return_fewer_outputs_in_evaluation():
    chosen = Task((Output("0", jax="0", shape=(4,)), Output("1", jax="1", shape=(4,))))
    assert task.find_outputs(chosen, {"": "logits"}, "torch") == [(chosen.outputs[0], "logits")]
    assert replace(chosen).is_packed
