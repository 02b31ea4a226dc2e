"""Pairs with other tasks than classification: their losses and gradients agree, and a wrong port is told apart."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.own import asked, inside


@dataclass(frozen=True)
class Case:
    """A pair of `examples/pairs/tasks_*.py`, its options, and the right answer.

    Attributes:
        factory: its name on both sides.
        options: of the command.
        layer: where it differs first; "" if it agrees.
        says: words of the report.
    """

    factory: str
    options: tuple[str, ...]
    layer: str = ""
    says: tuple[str, ...] = ()


SEGMENTER = ("--input", "8x10x3", "--classes", "4")
HEADS = ("--input", "8x8x3", "--classes", "4", "--loss")
ALLOW = ("--allow", "running-variance")
NOISE = ("--input", "image=8x8x3", "--input", "t=int:100")
FOCAL = [f"{side}=examples/pairs/tasks_{file}.py:focal_loss" for side, file in (("jax", "linen"), ("torch", "torch"))]
CASES = {
    "a class a pixel": Case("segmenter", SEGMENTER),
    "a class a pixel, SAME": Case("segmenter", (*SEGMENTER, "--model-args", "jax.padding=SAME"), "0", ("padding",)),
    "images, l1": Case("upscaler", ("--input", "8x8x3", "--loss", "l1")),
    "images, resized otherwise": Case(
        "upscaler", ("--input", "8x8x3", "--loss", "l1", "--model-args", "torch.mode=bilinear"), "last"
    ),
    "one logit": Case("detector", ("--input", "8x8x3", "--loss", "bce")),
    "the input again": Case("autoencoder", ("--input", "8x8x3", "--loss", "mse,target=input")),
    "the input again, bounded on one side": Case(
        "autoencoder", ("--input", "8x8x3", "--loss", "mse,target=input", "--model-args", "jax.bound=true"), "logits"
    ),
    "two heads": Case("two_heads", (*HEADS, "0=cross-entropy", "--loss", "1=huber,delta=0.5,weight=0.4")),
    "two heads by name": Case(
        "two_heads", (*HEADS, "side=mse", "--loss", "main=cross-entropy", "--model-args", "as_dict=true")
    ),
    "image and time step": Case("denoiser", (*NOISE, "--loss", "mse")),
    "signals": Case("signals", ("--input", "signal=32x2", "--classes", "4", *ALLOW)),
    "volumes": Case("volumes", ("--input", "volume=6x8x8x2", "--classes", "4", *ALLOW)),
    "a loss of one's own": Case(
        "signals",
        (
            "--input",
            "signal=32x2",
            "--classes",
            "4",
            "--loss",
            FOCAL[0],
            "--loss",
            FOCAL[1],
            "--allow",
            "running-variance",
        ),
    ),
}
QUICK = ("torch:stock", "jax", "--device", "cpu", "--epochs", "1", "--seeds", "2", "--batch-size", "8")


def run(factory: str, options: tuple[str, ...], out: Path) -> asked.Answer:
    pair = ["--jax", f"examples/pairs/tasks_linen.py:{factory}", "--torch", f"examples/pairs/tasks_torch.py:{factory}"]
    done = inside.run("agree", *QUICK, *pair, *options, "--precision", "float64", "--out", str(out))
    return asked._answer(done, out)


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_right(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    answer = run(case.factory, case.options, tmp_path)
    assert answer.code == bool(case.layer), answer.text + answer.error
    if case.layer:
        where = answer.first_mismatch.partition(" ")[0].replace("/", ".").split(".")
        assert case.layer in where, answer.first_mismatch
    assert all(word in answer.text for word in case.says), answer.text


def test_a_model_that_halves_and_doubles_its_images_is_certified_at_another_batch_size(tmp_path: Path) -> None:
    """It returns 16x16 for 16x16 and for 17x17, so at 17x17 its target, the input, would have another shape."""
    pair = ("--jax", "tests/pairs/styles_flax.py:autoencoder", "--torch", "tests/pairs/styles_torch.py:autoencoder")
    options = ("--input", "16x16x3", "--loss", "mse,target=input", "--precision", "float64", "--out", str(tmp_path))
    answer = asked._answer(inside.run("agree", *QUICK, *pair, *options, case=1), tmp_path)
    assert answer.code == 0, answer.text + answer.error


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_one_model_is_certified_against_itself_and_never_as_a_pair(tmp_path: Path, side: str) -> None:
    file = {"jax": "examples/pairs/tasks_linen.py", "torch": "examples/pairs/tasks_torch.py"}[side]
    contenders = {"jax": ("jax:stock", "jax:pieces"), "torch": ("torch:stock", "torch:channels-last")}[side]
    given = (
        f"--{side}",
        f"{file}:two_heads",
        "--input",
        "8x8x3",
        "--classes",
        "4",
        "--loss",
        "0=bce",
        "--loss",
        "1=mse",
    )
    options = ("--device", "cpu", "--epochs", "1", "--seeds", "2", "--batch-size", "8", "--out", str(tmp_path))
    answer = asked._answer(inside.run("agree", *contenders, *given, *options), tmp_path)
    assert answer.code == 0, answer.text + answer.error
    assert answer.result["agreement"]["kind"] == "self"
    assert "within one framework" in answer.text
    assert "matched" not in answer.text
    wrong = inside.run("agree", "torch:stock", "jax", *given, *options)
    assert wrong.returncode == 2
    assert "has no model" in wrong.stderr
