"""Pairs of many kinds, each with its right answer. `make cases` runs all of them, and `make test` a fixed sample."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.own import asked

FLAX, TORCH = "tests/pairs/flax_side.py", "tests/pairs/torch_side.py"
VARIANCE = ("--allow", "running-variance")


@dataclass(frozen=True)
class Pair:
    """A pair and its answer: the exit code, words that the answer has, and options of the command."""

    name: str
    jax: str
    torch: str
    code: int = 0
    words: str = ""
    options: tuple[str, ...] = ()


def simple(kind: str, *options: str, code: int = 0, words: str = "") -> Pair:
    """Return the pair with this middle part."""
    arguments = ("--model-args", f"kind={kind}", *options)
    return Pair(kind, "simple", "simple", code, words, arguments)


SAMPLE = (
    simple("power"),
    simple("flat_gate"),
    simple("to_image"),
    Pair("square", "response", "response"),
    Pair("own batch norm", "normed", "normed", options=("--model-args", "kind=batch", *VARIANCE)),
    Pair("jit", "lifted", "lifted", options=("--model-args", "jax.kind=jit")),
    Pair("functions", "Plain", "functions"),
    Pair("as in libraries", "Library", "library", options=VARIANCE),
    Pair(
        "two differences",
        "dense",
        "dense",
        1,
        "same channels on both sides in another order",
        ("--model-args", "jax.momentum=0.5", "--model-args", "jax.is_new_first=true", *VARIANCE),
    ),
)
OTHERS = (
    simple("ceiling"),
    simple("flat_norm"),
    simple("joined"),
    simple("hard"),
    simple("coordinates"),
    simple("dropped", words="dropout differs: rates"),
    simple("stopped", "--model-args", "option=true"),
    simple("stopped", "--model-args", "jax.option=true", code=1, words="trains on one side only"),
    simple("pooled", "--model-args", "option=true"),
    simple("pooled", "--model-args", "option=false"),
    simple("pooled", "--model-args", "jax.option=true", code=1, words="count_include_pad=False"),
    Pair("own instance norm", "normed", "normed", options=("--model-args", "kind=instance")),
    Pair("mapped axis", "normed", "normed", options=("--model-args", "kind=axis", *VARIANCE)),
    Pair("remat", "lifted", "lifted", options=("--model-args", "jax.kind=remat")),
    Pair("dense", "dense", "dense", options=VARIANCE),
    Pair("long sums", "dense", "dense", options=(*VARIANCE, "--precision", "bfloat16")),
    Pair("attention", "attended", "attended", words="MultiHeadDotProductAttention_1 with p=0.1"),
    Pair("weight norm", "normalised", "normalised", words="adds 1e-12 under its root"),
    Pair("weight norm, the old one", "normalised", "normalised", options=("--model-args", "torch.old=true")),
    Pair("attention of nnx", "NewAttended", "attended", words="computes its softmax in float32"),
    Pair("attention on rows first", "attended", "attended", options=("--model-args", "torch.rows_first=false")),
    Pair(
        "attention apart",
        "attended",
        "attended",
        1,
        "norms.1 and it is the first to differ",
        ("--model-args", "jax.scale=2"),
    ),
    Pair("a model as factory", "made", "made", 2, "is a model (a Simple), not a function that makes one"),
)


def _check(pair: Pair, folder: Path) -> None:
    answer = asked.agree(f"{FLAX}:{pair.jax}", f"{TORCH}:{pair.torch}", folder, *asked.QUICK, *pair.options)
    assert answer.code == pair.code, answer.text + answer.error
    assert pair.words in answer.text + answer.error


@pytest.mark.slow
@pytest.mark.parametrize("pair", SAMPLE, ids=lambda pair: pair.name)
def test_a_pair_of_the_sample_gets_its_answer(pair: Pair, tmp_path: Path) -> None:
    _check(pair, tmp_path)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm")
@pytest.mark.parametrize("pair", OTHERS, ids=lambda pair: f"{pair.name} {' '.join(pair.options[2:])}")
def test_a_pair_gets_its_answer(pair: Pair, tmp_path: Path) -> None:
    _check(pair, tmp_path)


FLAX_SOURCE = """
from flax import linen as nn
class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Conv(6, (3, 3), strides=(2, 2), CONV)(x)
        x = nn.BatchNorm(use_running_average=not train, NORM)(x)
        x = ACTIVATION
        x = POOL
        return nn.Dense(10)(x.reshape(len(x), -1))
def model(): return Net()
"""
TORCH_SOURCE = """
from torch import nn
def model():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.GELU(),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Flatten(), nn.Linear(96, 10))
"""


def test_every_printed_cure_works_when_it_is_pasted(tmp_path: Path) -> None:
    """A port with five mistakes needs one run: its answer has all cures, and with them the pair passes."""
    wrong = {
        "CONV": "padding='SAME'",
        "NORM": "momentum=0.5, epsilon=1e-3",
        "ACTIVATION": "nn.gelu(x)",
        "POOL": "nn.avg_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))",
    }
    torch, flax = tmp_path / "torch_model.py", tmp_path / "flax_model.py"
    torch.write_text(TORCH_SOURCE)
    flax.write_text(_paste(wrong))
    answer = asked.agree(f"{flax}:model", f"{torch}:model", tmp_path, *asked.QUICK, *VARIANCE)
    assert answer.code == 1
    assert "5 differences to repair:" in answer.text
    cures = [cure.strip() for cure in re.findall(r"equal with (.+?) in flax", answer.text)]
    by_start = {cure.partition("=")[0].partition("(")[0]: cure for cure in cures}
    cured = {
        "CONV": by_start["padding"],
        "NORM": f"{by_start['momentum']}, {by_start['epsilon']}",
        "ACTIVATION": by_start["nn.gelu"],
        "POOL": by_start["nn.avg_pool"],
    }
    better = tmp_path / "cured_model.py"  # a name of its own, because this process has imported the other
    better.write_text(_paste(cured))
    again = asked.agree(f"{better}:model", f"{torch}:model", tmp_path, *asked.QUICK, *VARIANCE)
    assert again.code == 0, again.text


def test_a_file_beside_the_model_may_have_the_name_of_samesteps_package(tmp_path: Path) -> None:
    (tmp_path / "compare.py").write_text("WIDTH = 6\n")
    torch = tmp_path / "torch_model.py"
    torch.write_text(
        "from torch import nn\nfrom compare import WIDTH\nimport torch\ntorch.set_default_dtype(torch.float64)\n"
        "def model():\n    return nn.Sequential(nn.Conv2d(3, WIDTH, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), "
        "nn.Flatten(), nn.Linear(WIDTH, 10))\n"
    )
    arguments = ("--model-args", "jax.kind=mean")
    answer = asked.agree(f"{FLAX}:simple", f"{torch}:model", tmp_path, *asked.QUICK, *arguments)
    assert answer.code == 0, answer.text + answer.error
    assert "sets torch's default dtype to torch.float64" in answer.text


def _paste(code: dict[str, str]) -> str:
    source = FLAX_SOURCE
    for place, text in code.items():
        source = source.replace(place, text)
    return source
