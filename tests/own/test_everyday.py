"""Everyday pairs: equal ones, different ones and unusable ones, each with its message."""

import hashlib
import json
from pathlib import Path

import pytest

from compare.worker import factories
from tests.own import asked

TORCH, FLAX = "tests.own.torch_models", "tests.own.flax_models"


def test_biases_whose_gradients_are_sums_of_like_numbers_pass_in_float32(tmp_path: Path) -> None:
    options = ("--precision", "float32", "--batch-size", "8")
    found = asked.agree(f"{FLAX}:plain", f"{TORCH}:plain", tmp_path, *options, image="32x32x3")
    gates = {each["name"]: each for each in found.result["agreement"]["pairs"][0]["gates"]}
    assert found.result["agreement"]["pairs"][0]["first_mismatch"] is None
    assert gates["precision"]["passed"]
    assert gates["semantic"]["value"] < 1e-10


def test_a_dense_layer_is_the_1x1_convolution_of_an_image_of_one_pixel(tmp_path: Path) -> None:
    found = asked.agree(f"{FLAX}:squeezed", f"{TORCH}:squeezed", tmp_path)
    assert found.first_mismatch == ""
    tensors = {each["name"] for each in found.result["agreement"]["pairs"][0]["tensors"]}
    assert {"step1/activation/fc1.input", "step1/activation/fc1", "step1/activation/fc2"} <= tensors


def test_a_range_among_the_operations_of_a_model_is_no_function_of_its_images(tmp_path: Path) -> None:
    options = ("--model-args", "jax.ranged=true")
    assert asked.agree(f"{FLAX}:plain", f"{TORCH}:plain", tmp_path, *options).first_mismatch == ""


def test_a_head_may_be_an_embedding_of_the_classes(tmp_path: Path) -> None:
    found = asked.agree(f"{FLAX}:prototypes", f"{TORCH}:prototypes", tmp_path)
    assert found.first_mismatch == ""
    assert found.result["spec"]["pair"]["map"]["classes.weight"] == "params/Embed_0/embedding"


def test_what_differs_between_two_layers_is_not_called_the_layer_s_own(tmp_path: Path) -> None:
    found = asked.agree(f"{FLAX}:plain", f"{TORCH}:plain", tmp_path, "--model-args", "torch.scale=0.5")
    assert found.first_mismatch.startswith("step1/activation/head.input")
    assert "torch multiplies by 0.5, flax by 1" in found.first_mismatch
    assert "epsilon" not in found.first_mismatch


def test_a_table_is_printed_line_by_line(tmp_path: Path) -> None:
    found = asked.agree("vgg_linen.py:model", "vgg_torch.py:forgetful", tmp_path)
    lines = found.error.splitlines()
    assert lines[0].startswith("samestep: the layers do not match: torch lacks a layer")
    assert any(line.split()[:1] == ["torch"] for line in lines)
    assert len(lines) > 5
    assert "?" not in lines[0]


def test_a_model_that_exits_is_refused_by_its_factory_s_name(tmp_path: Path) -> None:
    found = asked.agree(f"{FLAX}:plain", f"{TORCH}:exits", tmp_path)
    assert found.code == 2
    assert f"{TORCH}:exits: training on images" in found.error
    assert "SystemExit" in found.error


@pytest.mark.parametrize(
    ("flax", "torch", "file", "text"),
    [
        ("plain", "misspelt", "torch_models.py", "haed.weight"),
        ("misspelt", "plain", "flax_models.py", "x.mean((1, 22))"),
        ("finds_nothing", "plain", "flax_models.py", 'return {}["model"]'),
    ],
)
def test_an_error_in_a_model_is_placed_in_its_file(tmp_path: Path, flax: str, torch: str, file: str, text: str) -> None:
    found = asked.agree(f"{FLAX}:{flax}", f"{TORCH}:{torch}", tmp_path)
    lines = Path(__file__).with_name(file).read_text().splitlines()
    number = next(number for number, line in enumerate(lines, start=1) if text in line)
    assert found.code == 2
    assert f"({file}, line {number})" in found.error


def test_variables_of_one_layer_given_to_two_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"b.weight": "params/Conv_1/kernel", "b.bias": "params/Conv_2/bias"}))
    found = asked.agree(f"{FLAX}:plain", f"{TORCH}:plain", tmp_path, "--weights-map", str(path))
    assert found.code == 2
    assert "of torch's 'b' to two layers of flax, 'Conv_1' and 'Conv_2'; allowed: all of them to one" in found.error


@pytest.mark.parametrize("name", ["plain", "plain_of_a_half", "Plain"])
def test_the_source_hash_is_of_the_file_that_defines_the_factory(name: str) -> None:
    arguments = {"scale": 1.0} if name == "Plain" else {}
    made = factories.make(f"{TORCH}:{name}", arguments, offered={}, other="jax")
    file = Path(__file__).with_name("torch_models.py")
    assert made.source_sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
