"""The plain loops, which samestep is compared with, train the same networks on as many images."""

import importlib
import json
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import torchbackend.models
import torchbackend.precision
from benchmarks.beside_plain import LOOPED
from compare.base import workloads

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("plain_jax"), importlib.import_module("plain_torch")


@pytest.mark.parametrize("name", LOOPED)
def test_a_plain_loop_trains_what_the_workload_is(loops: tuple[Any, Any], name: str):
    (plain_jax, plain_torch), workload = loops, workloads.get(name)
    batch, size, classes, smoothing, network = plain_jax.WORKLOADS[name]
    model = workload.model
    assert (batch, (size, size, 3), classes) == (workload.batch_size, model.image, model.classes)
    assert smoothing == workload.label_smoothing
    assert plain_torch.WORKLOADS[name] == (batch, size, classes, smoothing)
    with torch.device("meta"):
        twin = torchbackend.models.build(model, torchbackend.precision.policy("float32", "cpu", 1.0))
    count = sum(each.numel() for each in twin.parameters())
    images = jax.ShapeDtypeStruct((2, size, size, 3), "bfloat16")
    made = jax.eval_shape(network(classes).init, jax.random.key(0), images)["params"]
    assert sum(each.size for each in jax.tree.leaves(made)) == count
    try:
        plain = plain_torch.network(name, classes)
    except SystemExit as refusal:  # samestep does not need torchvision
        assert "torchvision's, which is not installed" in str(refusal)  # noqa: PT017 -- where it is there, nothing raises
    else:
        assert sum(each.numel() for each in plain.parameters()) == count


@pytest.mark.parametrize("framework", [0, 1])
def test_a_plain_loop_that_trains_no_numbers_is_no_yardstick(
    loops: tuple[Any, Any], framework: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    loop = loops[framework]
    for name, value in {"BLOCK": 1, "BLOCKS": 1, "LEAST_BLOCKS": 1, "WARM_UP": 1}.items():
        monkeypatch.setattr(loop, name, value, raising=False)
    monkeypatch.setattr(
        "torch.backends.cudnn.benchmark", torch.backends.cudnn.benchmark
    )  # restores the present setting after the loop
    monkeypatch.setattr(jax.config, "update", lambda *_: None)  # this process's devices are up, and more than one
    place = ["--device", "cpu", "--mode", "eager"] if framework else []
    monkeypatch.setattr("sys.argv", ["loop", "--workload", "cifar-cnn", "--batch-size", "2", *place])
    loop.main()
    assert json.loads(capsys.readouterr().out)["loss"] >= 0  # two images may be learned to 0
    monkeypatch.setattr(loop, "RATES", {"cifar-cnn": 1e38})
    with pytest.raises(SystemExit, match="the loss is nan"):
        loop.main()
    assert not capsys.readouterr().out
