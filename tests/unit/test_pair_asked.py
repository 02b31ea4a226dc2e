"""A pair as a user writes it down: what it becomes, and what is refused of it."""

import dataclasses
import json
import re
from importlib.resources import files
from typing import Any

import pytest

import compare
from compare.base import descriptions, workloads
from compare.base.interface import Refused
from compare.base.task import Input, Output, Task
from compare.base.workloads import OptimizerSpec, Workload
from compare.settings import pair_spec, plan
from compare.settings.options import Settings

JAX, TORCH = "models.flax:net", "models/torch.py:net"


def pair(**changes: Any) -> Workload:
    return pair_spec.make_workload(JAX, TORCH, **({"image": "32x16x3", "classes": 10} | changes))


def test_a_pair_is_a_workload_that_survives_json():
    made = pair(arguments={"width": 8, "jax.dtype": "float32", "torch.bias": False}, allow=["running-variance"])
    assert (made.name, made.model.image, made.model.classes) == ("torch:net", (32, 16, 3), 10)
    assert made.model.arguments == {
        "jax": JAX,
        "torch": TORCH,
        "arguments": {"jax": {"width": 8, "dtype": "float32"}, "torch": {"width": 8, "bias": False}},
        "allow": ["running-variance"],
    }
    assert descriptions.from_json(json.loads(json.dumps(descriptions.to_json(made)))) == made
    assert compare.pair(JAX, TORCH, image=(32, 16, 3), classes=10) == pair()


@pytest.mark.parametrize("stem", ["_net", "my model", "2net", "net(1)", "m\u00f6dell", "\u6a21", "n" * 300])
def test_a_pair_may_lie_in_a_file_of_any_name(stem: str):
    pattern = json.loads(files("compare.results").joinpath("result.schema.json").read_text())["definitions"]["name"]
    name = pair_spec.make_workload(JAX, f"models/{stem}.py:net", image="32x16x3", classes=10).name
    assert re.search(pattern["pattern"], name)
    assert len(name) <= pattern["maxLength"] == workloads.LONGEST_NAME


@pytest.mark.parametrize("name", ["", "my own net", "2net", "net\n", "n" * 201, "\u00e4"])
def test_a_name_that_no_result_may_have_is_refused_before_anything_runs(name: str):
    with pytest.raises(Refused, match="workload name"):
        pair(name=name)
    assert pair(name="n" * 200).name == "n" * 200


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_built_in_workloads_survive_json_and_are_known_as_such(name: str):
    made = descriptions.from_json(descriptions.to_json(workloads.WORKLOADS[name]))
    assert descriptions.to_json(made) == descriptions.to_json(workloads.WORKLOADS[name])
    assert workloads.is_built_in(workloads.WORKLOADS[name])
    assert not workloads.is_built_in(dataclasses.replace(made, batch_size=made.batch_size + 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "mse,target=input", "classes": None},
        {"loss": ["main=cross-entropy,weight=2", "side=huber,delta=0.5"]},
        {"loss": ["jax=a.py:f,target=labels", "torch=b.py:f"]},
        {"loss": "l1", "image": ["image=8x8x3", "t=int:1000", "words=int:50:7", "noise=same:4x5"]},
    ],
)
def test_a_pair_with_a_task_survives_json(changes: dict[str, Any]):
    made = pair(**changes)
    assert made.task is not None
    assert descriptions.from_json(json.loads(json.dumps(descriptions.to_json(made)))) == made


def test_losses_and_inputs_are_what_the_texts_say():
    made = pair(loss=["a=bce", "b=huber,delta=2,weight=0.5"], image=["x=6x4", "t=int:9:2"], classes=None)
    assert made.task == Task(
        (Output("a", "binary-cross-entropy", "binary"), Output("b", "huber", "values", 0.5, delta=2.0))
    )
    assert made.model.inputs == (Input("x", (6, 4)), Input("t", (2,), below=9))
    assert made.model.image == (1, 1, 26)
    assert pair(image=["x=2", "t=float"]).model.inputs[1] == Input("t", ())
    assert pair(loss="cross-entropy,label_smoothing=0.2").label_smoothing == 0.2
    assert pair(loss="cross-entropy").task is None


def test_how_variables_are_called_does_not_decide_the_arithmetic():
    made = pair()
    named = dataclasses.replace(made.model, arguments={**made.model.arguments, "names": {"jax": 1}})
    assert descriptions.describe_arithmetic(dataclasses.replace(made, model=named)) == descriptions.describe_arithmetic(
        made
    )


def test_optimizers_and_losses_take_settings():
    made = pair(optimizer="adamw,learning_rate=0.01,weight_decay=0", loss="cross-entropy,label_smoothing=0.1")
    assert made.optimizer == OptimizerSpec("adam", learning_rate=0.01, weight_decay=0, decoupled=True)
    assert made.label_smoothing == 0.1
    assert pair(optimizer="sgd,nesterov=true").optimizer.nesterov
    assert pair(optimizer=OptimizerSpec("sgd", 1.0)).optimizer.learning_rate == 1.0


def test_values_of_arguments_are_json_or_text():
    texts = ["a=1", "b=[1,2]", "c=True", "d=None", "e=x=y", "f=1e-3"]
    assert pair_spec.parse_assignments(texts) == {"a": 1, "b": [1, 2], "c": True, "d": None, "e": "x=y", "f": 1e-3}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": "32x16"}, "HEIGHTxWIDTHxCHANNELS"),
        ({"image": (0, 1, 1)}, "HEIGHTxWIDTHxCHANNELS"),
        ({"classes": 1}, "--loss bce without --classes"),
        ({"optimizer": "lamb"}, "--optimizer lamb"),
        ({"optimizer": "sgd,depth=3"}, "--optimizer depth=3"),
        ({"optimizer": "sgd,momentum=-1"}, "--optimizer momentum=-1"),
        ({"optimizer": "sgd,momentum=true"}, "--optimizer momentum=True"),
        ({"optimizer": "sgd,nesterov=1"}, "--optimizer nesterov=1"),
        ({"optimizer": "sgd,momentum=0,nesterov=true"}, "nesterov needs a momentum above 0"),
        ({"optimizer": "sgd,momentum"}, "KEY=VALUE"),
        ({"loss": "hinge"}, "--loss hinge"),
        ({"loss": "cross-entropy,label_smoothing=1"}, "label smoothing of 1"),
        ({"loss": "cross-entropy,margin=1"}, "margin is not allowed; allowed: label_smoothing, weight"),
        ({"loss": "dice"}, "--loss dice: allowed: cross-entropy, binary-cross-entropy, mse, l1, huber"),
        ({"loss": ["mse", "l1"]}, "one loss, or OUTPUT=LOSS for each output"),
        ({"loss": ["a=mse", "a=l1"]}, "one loss for each output"),
        ({"loss": "jax=a.py:f"}, "jax=FILE:FUNCTION and torch=FILE:FUNCTION"),
        ({"loss": "mse,weight=0"}, "a weight of 0 is not allowed"),
        ({"loss": "mse,target=noise"}, "allowed: labels, binary, values, input"),
        ({"classes": None}, "--classes None is not allowed; allowed: the number of classes"),
        ({"image": ["t=int:0"]}, "--input t=int:0"),
        ({"image": ["t=int:9"]}, "at least one input of real values"),
        ({"image": ["a=2", "a=3"]}, "a different name for each input"),
        ({"arguments": {"keras.x": 1}}, "--model-args keras.x"),
        ({"allow": ["anything"]}, "--allow anything"),
    ],
)
def test_what_is_not_of_these_forms_is_refused(changes: dict[str, Any], words: str):
    with pytest.raises(Refused) as refusal:
        pair(**changes)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"jax": 1}, "jax 1 is not allowed; allowed: pkg.module:factory or path/to/file.py:factory"),
        ({"torch": "models"}, "torch models: names no factory"),
        ({"classes": "x"}, "classes 'x' is not allowed; allowed: a whole number from 2"),
        ({"classes": 2.5}, "classes 2.5 is not allowed"),
        ({"batch_size": "3"}, "batch_size '3' is not allowed"),
        ({"epochs": 0}, "epochs 0 is not allowed"),
        ({"image": ("8", 8, 3)}, "image ('8', 8, 3) is not allowed; allowed: height, width and channels, such as (224"),
        ({"image": 8}, "image 8 is not allowed"),
        ({"image": "8x8"}, "image 8x8: allowed: HEIGHTxWIDTHxCHANNELS"),
        ({"arguments": [1]}, "arguments [1] is not allowed; allowed: names with values, such as {'width': 16}"),
        ({"arguments": {1: 2}}, "arguments [1] is not allowed; allowed: names that are texts"),
        ({"optimizer": 5}, "optimizer 5 is not allowed; allowed: sgd, adam, adamw, or a compare.OptimizerSpec"),
        ({"loss": None}, "loss None is not allowed; allowed: cross-entropy"),
        ({"allow": "running-variance"}, "allow 'running-variance' is not allowed; allowed: a list of running-variance"),
        ({"name": 5}, "name 5 is not allowed; allowed: a text"),
    ],
    ids=str,
)
def test_an_argument_of_another_kind_is_refused_by_its_name_in_python(changes: dict[str, Any], said: str):
    with pytest.raises(compare.Refused) as refusal:
        compare.pair(**({"jax": JAX, "torch": TORCH, "image": "8x8x1", "classes": 3} | changes))
    assert str(refusal.value).startswith(said)


@pytest.mark.parametrize("texts", [["a"], ["=1"], ["a=1", "a=2"]])
def test_assignments_of_another_form_are_refused(texts: list[str]):
    with pytest.raises(Refused):
        pair_spec.parse_assignments(texts)


@pytest.mark.parametrize("reference", ["models", "models:", ":net"])
def test_a_reference_without_a_factory_is_refused(reference: str):
    with pytest.raises(Refused, match="names no factory"):
        pair_spec.make_workload(reference, TORCH, image="8x8x1", classes=2)


@pytest.mark.parametrize(
    ("image", "changes", "batch", "rate"),
    [
        ("16x16x3", {}, 32, 0.05),
        ("32x32x3", {}, 16, 0.025),
        ("64x64x3", {}, 4, 0.00625),
        ("224x224x3", {}, 4, 0.00625),
        ("64x64x3", {"batch_size": 16}, 32, 0.05),
        ("64x64x3", {"accumulate": 2}, 32, 0.05),
    ],
)
def test_a_certificate_on_a_cpu_trains_large_images_in_small_batches(
    image: str, changes: dict[str, Any], batch: int, rate: float
) -> None:
    settings = plan.reduce_to_certificate(Settings(workload=pair(image=image), device="cpu", **changes))
    assert isinstance(settings.workload, Workload)
    assert (settings.workload.batch_size, settings.workload.optimizer.learning_rate) == (batch, rate)


@pytest.mark.parametrize(("devices", "names"), [(1, ["torch:stock", "jax:pieces"]), (2, ["torch:stock", "jax:stock"])])
def test_a_certificate_of_a_pair_takes_contenders_that_its_devices_allow(devices: int, names: list[str]) -> None:
    settings = plan.reduce_to_certificate(Settings(workload=pair(), device="cpu", devices=devices))
    assert list(settings.contenders or ()) == names
