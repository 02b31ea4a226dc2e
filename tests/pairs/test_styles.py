"""Pairs in many styles. Their right answers were written down before the first run. `make cases` runs them."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.own import asked, inside

VARIANCE = "--allow running-variance"


@dataclass(frozen=True)
class Style:
    """A factory of both sides, options of the command, the exit code, words that the answer has, and the files."""

    factory: str
    options: str = ""
    code: int = 0
    words: str = ""
    torch: str = ""
    classes: int | None = 10
    file: str = "styles"


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
_ORDER = "same channels on both sides in another order"
more = partial(Style, file="more")
MORE = (
    more("twice_tied"),
    more("twice_tied", "--model-args tied=false"),
    more("twice_tied", "--model-args jax.tied=false", 2, "torch uses the weights of middle.first at 2 places"),
    more("twice_tied", "--model-args torch.tied=false", 2, "flax uses the weights of TwiceTied_0/Conv_0 at 2 places"),
    more("words", "--input words=int:10 --input x=8"),
    more("words", "--input words=int:10 --input x=8 --model-args tied=false"),
    more(
        "words",
        "--input words=int:10 --input x=8 --model-args jax.tied=false",
        2,
        "torch uses the weights of embed at 2 places",
    ),
    more(
        "words",
        "--input words=int:10 --input x=8 --model-args torch.tied=false",
        2,
        "flax uses the weights of embed at 2 places",
    ),
    more("root_norm"),
    more("flax_norm", torch="root_norm"),
    more("root_norm", "--model-args torch.single=true", 1, "part.0 computes in float32"),
    more("root_norm", "--model-args jax.single=true", 1, "part.0 computes in float32"),
    more("orders"),
    more("orders", "--model-args jax.renamed=true"),
    more("joined_tokens"),
    more("joined_tokens", "--model-args jax.renamed=true"),
    more("joined_tokens", "--model-args jax.renamed=true --model-args torch.early=true"),
    more("film", "--input image=8x8x3 --input c=6 --loss mse", classes=None),
    more("film", "--input image=8x8x3 --input c=6 --loss mse --model-args jax.one=0", 1, "before out", classes=None),
    more("fourier", "--input coords=2 --loss mse", classes=None),
    more("fourier", "--input coords=2 --loss mse --model-args jax.turned=true", 1, _ORDER, classes=None),
    more("volume", "--input volume=8x8x8x1 --loss mse,target=input", classes=None),
    more("transposed"),
    more("transposed", "--model-args jax.flipped=true"),
    more("transposed", "--model-args jax.padding=SAME", 1, "padding=((1, 2), (1, 2)) in flax"),
    more("inverted", VARIANCE),
    more("inverted", f"{VARIANCE} --model-args jax.gate=sigmoid", 1, "torch has hardsigmoid, flax has sigmoid"),
    more("inverted", f"{VARIANCE} --model-args jax.biased=false", 2, "a missing bias"),
    more("same", "--input signal=16x3"),
    more("same", "--input signal=16x3 --model-args jax.approximate=false", 1, "nn.gelu(x, approximate=True)"),
    more("circular"),
    more("circular", "--model-args jax.padding=SAME", 1, "padding mode is circular in torch and zeros in flax"),
    more("reflected"),
    more("reflected", "--model-args jax.mode=symmetric", 1, "middle.1"),
    more("gated_mlp"),
    more("gated_mlp", "--model-args jax.turned=true", 1, "before part.narrow"),
    more("spatial_gate"),
    more("grouped"),
    more("grouped", "--model-args jax.ddof=1", 1, "middle.0"),
    more("standard_weights"),
    more("window"),
    more("window", "--model-args jax.turned=true", 1, "before part.proj"),
    more("rotary"),
    more("rotary", "--model-args jax.interleaved=true", 1, "before part.o_proj"),
    more("depth"),
    more("depth", "--model-args jax.rate=0.1", 0, "dropout differs: rates"),
    more("centred"),
    more("centred", "--model-args jax.momentum=0.99", 1, "buffer/2.gamma"),
    more("segmented", classes=4),
    more("segmented", "--model-args torch.align=true", 1, "before out", classes=4),
    more("keypoints", "--loss huber", classes=None),
    more("keypoints", "--loss huber --model-args jax.turned=true", 1, "logits", classes=None),
    more("space_to_depth"),
    more("space_to_depth", "--model-args jax.blocks_first=true", 1, _ORDER),
    more("siamese", "--input a=8x8x3 --input b=8x8x3"),
    more("siamese", "--input a=8x8x3 --input b=8x8x3 --model-args jax.tied=false", 2, "at 2 places"),
    more("experts"),
    more("non_local"),
)


def ask(style: Style, out: Path) -> asked.Answer:
    """Run `samestep agree` on a pair."""
    options = style.options.split()
    options += [] if "--input" in options else ["--input", "16x16x3"]
    options += [] if style.classes is None else ["--classes", str(style.classes)]
    files = f"tests/pairs/{style.file}"
    sides = ("--jax", f"{files}_flax.py:{style.factory}", "--torch", f"{files}_torch.py:{style.torch or style.factory}")
    done = inside.run("agree", "torch:stock", "jax", *sides, *options, *asked.QUICK, "--out", str(out))
    return asked._answer(done, out)


@pytest.mark.thorough
@pytest.mark.parametrize("style", STYLES + MORE, ids=lambda each: " ".join(filter(None, (each.factory, each.options))))
def test_a_pair_of_any_style_gets_its_answer(style: Style, tmp_path: Path) -> None:
    answer = ask(style, tmp_path)
    assert answer.code == style.code, answer.text + answer.error
    assert style.words in answer.text + answer.error
