"""Pairs in many styles. Their right answers were written down before the first run. `make cases` runs them."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.own import asked, inside

FLAX, TORCH = "tests/pairs/styles_flax.py", "tests/pairs/styles_torch.py"
VARIANCE = "--allow running-variance"


@dataclass(frozen=True)
class Style:
    """A factory of both sides, options of the command, the exit code, and words that the answer has."""

    factory: str
    options: str = ""
    code: int = 0
    words: str = ""
    torch: str = ""
    classes: int | None = 10


STYLES = (
    Style("lists"),
    Style("named"),
    Style("separable", VARIANCE),
    Style(
        "separable", f"{VARIANCE} --model-args stride=2 --model-args jax.padding=SAME", 1, "padding=((1, 1), (1, 1))"
    ),
    Style("groups"),
    Style("groups", "--model-args jax.epsilon=1e-3", 1, "epsilon is 1e-5 in torch and 0.001 in flax"),
    Style("autoencoder", "--loss mse,target=input", classes=None),
    Style("unet", classes=4),
    Style("unet", "--model-args jax.swapped=true", 1, "same channels on both sides in another order", classes=4),
    Style("mixer"),
    Style("tokens"),
    Style("tokens", "--model-args jax.root=false", 1, "first mismatch: step1/activation/middle.1.out.input"),
    Style("squeeze"),
    Style("signals", f"{VARIANCE} --input signal=32x3"),
    Style("timed", "--input image=8x8x3 --input t=int:10 --loss mse", classes=None),
    Style("heads", "--loss kind=cross-entropy --loss size=mse,weight=0.5"),
    Style("again"),
    Style("again", "--model-args jax.times=2", 2, "#3"),
    Style("instance"),
    Style("curves"),
    Style("curves", "--model-args jax.slope=0.3", 1, "leaky"),
    Style("gelu"),
    Style("gelu", "--model-args jax.approximate=true", 1, "approximate=False"),
    Style("pyramid"),
    Style("pyramid", "--model-args jax.rates=[1,2,4]", 1, "dilation is (3, 3) in torch and (4, 4) in flax"),
    Style("shuffle"),
    Style("shuffle", "--model-args jax.wrong=true", 1, "same channels on both sides in another order"),
    Style("enlarge", "--loss l1", classes=None),
    Style("enlarge", "--loss l1 --model-args mode=bilinear", classes=None),
    Style("enlarge", "--loss l1 --model-args mode=pixels", classes=None),
    Style(
        "enlarge",
        "--loss l1 --model-args torch.mode=pixels --model-args jax.mode=blocks",
        1,
        "what is computed between the layers before out",
        classes=None,
    ),
    # A pass would be right. torch's module computes the weight of its convolution, and is not recognised as one.
    Style("equalised", "", 2, "settle it with --weights-map"),
    Style("norms", VARIANCE),
    Style("norms", "", 1, "running variance is unbiased in torch and biased in flax"),
    Style("norms", f"{VARIANCE} --model-args jax.momentum=0.1", 1, "the same number was copied"),
    Style("stopped"),
    Style("stopped", "--model-args jax.everywhere=true", 1, "trains on one side only"),
    Style("dropped"),
    Style("checked"),
    Style("encoder"),
    Style("encoder", "--model-args jax.norm_first=false", 2, "norm1"),
    Style("layered"),
    Style("pooled"),
    Style("pooled", "--model-args torch.stride=1", 1, "average-pool"),
    Style("deep"),
    Style("deep", "--model-args torch.count=4", 2, "middle.6"),
    Style("deep", "--model-args jax.active=2", 1, "torch has relu, flax has none"),
    Style("scanned", "", 2, "nn.scan", torch="deep"),
    Style("flat"),
    Style("logit", "--loss bce", classes=None),
    Style("bilinear"),
    Style("gated", "--input signal=16x3"),
    Style("gated", "--input signal=16x3 --model-args jax.padding=SAME", 1, "equal with padding=((2, 0),) in flax gate"),
    Style("mixing"),
    Style("standardised"),
    Style("distilled"),
    Style("distilled", "--model-args jax.scale=0.5", 1, "torch multiplies by 0.25, flax by 0.5"),
    Style("derived"),
    Style("newly_derived", torch="derived"),
    Style("padded"),
    Style("padded", "--model-args torch.before=1", 1, "padding=((1, 0), (1, 0)) in flax"),
)


def ask(style: Style, out: Path) -> asked.Answer:
    """Run `samestep agree` on a pair."""
    options = style.options.split()
    options += [] if "--input" in options else ["--input", "16x16x3"]
    options += [] if style.classes is None else ["--classes", str(style.classes)]
    sides = ("--jax", f"{FLAX}:{style.factory}", "--torch", f"{TORCH}:{style.torch or style.factory}")
    done = inside.run("agree", "torch:stock", "jax", *sides, *options, *asked.QUICK, "--out", str(out))
    return asked._answer(done, out)


@pytest.mark.thorough
@pytest.mark.parametrize("style", STYLES, ids=lambda each: " ".join(filter(None, (each.factory, each.options))))
def test_a_pair_of_any_style_gets_its_answer(style: Style, tmp_path: Path) -> None:
    answer = ask(style, tmp_path)
    assert answer.code == style.code, answer.text + answer.error
    assert style.words in answer.text + answer.error
