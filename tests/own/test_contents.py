"""Pairs with contents of many kinds are certified, and a wrong port of each is told apart."""

from pathlib import Path

import pytest

from tests.own import asked, inside

OPTIONS = ("torch:stock", "jax", "--input", "8x8x3", "--classes", "4", "--device", "cpu", "--epochs", "1")
ALLOW = ("--allow", "running-variance")
AGREE = {
    "a flag that is a field, and a fixed dtype": ("flagged", *ALLOW),
    "functional dropout": ("dropping",),
    "buffers that flax writes into the code": ("scaled",),
    "another collection": ("collected",),
    "own attention with einsum, lazy layers": ("attention",),
    "a layer that is called twice": ("tied",),
}
DIFFER = {
    "another constant": ("scaled", "conv", "--model-args", "jax.factor=0.25"),
    "other heads": ("attention", "out", "--model-args", "jax.heads=4"),
}


def run(jax: str, torch: str, out: Path, *options: str) -> asked.Answer:
    pair = ("--jax", f"tests/own/content_jax.py:{jax}", "--torch", f"tests/own/content_torch.py:{torch}")
    done = inside.run("agree", *OPTIONS, *pair, *options, "--seeds", "2", "--batch-size", "8", "--out", str(out))
    return asked._answer(done, out)


@pytest.mark.parametrize("name", AGREE)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_right_port_agrees(tmp_path: Path, name: str) -> None:
    factory, *options = AGREE[name]
    answer = run(factory, factory, tmp_path, *options)
    assert answer.code == 0, answer.text + answer.error
    if factory == "dropping":
        assert "torch.nn.functional.dropout with p=0.3" in answer.text
    if factory == "scaled":
        assert "std, a buffer that never changes, stays as the factory makes it" in answer.text


@pytest.mark.parametrize("name", DIFFER)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_wrong_port_is_told_apart(tmp_path: Path, name: str) -> None:
    factory, layer, *options = DIFFER[name]
    answer = run(factory, factory, tmp_path, *options)
    assert answer.code == 1, answer.text + answer.error
    assert layer in answer.first_mismatch.partition(" ")[0].replace("/", ".").split("."), answer.first_mismatch


def test_differences_that_the_certificate_does_not_see_are_told(tmp_path: Path) -> None:
    options = ("--seeds", "2", "--batch-size", "8", "--model-args", "jax.rate=0.2", "--out", str(tmp_path))
    pair = ("--jax", "tests/own/content_jax.py:dropping", "--torch", "tests/own/content_torch.py:dropping")
    answer = asked._answer(inside.run("agree", *OPTIONS, *pair, *options, initial=True), tmp_path)
    assert answer.code == 0, answer.text + answer.error
    assert "dropout differs: rates" in answer.text
    assert "flax truncated normal, variance 1/fan-in" in answer.text
    assert 'kernel_init=nn.initializers.variance_scaling(1/3, "fan_in", "uniform")' in answer.text
    assert "nn.init.constant_(model.conv.bias, 0)" in answer.text


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_pair_trains_on_several_devices(tmp_path: Path) -> None:
    pair = ("--jax", "tests/own/content_jax.py:flagged", "--torch", "tests/own/content_torch.py:flagged")
    two = ("torch:stock+ddp", "jax:stock+pmap", *OPTIONS[2:], "--devices", "2", "--batch-norm", "local", *ALLOW)
    answer = asked._answer(
        asked.run("agree", *two, *pair, "--seeds", "2", "--batch-size", "8", "--out", str(tmp_path)), tmp_path
    )
    assert answer.code == 0, answer.text + answer.error


def test_batch_norm_over_devices_needs_local_statistics(tmp_path: Path) -> None:
    answer = run("flagged", "flagged", tmp_path, "--devices", "2", "--parallel", "ddp,pmap")
    assert answer.code == 2
    assert "allowed: --batch-norm local" in answer.error
