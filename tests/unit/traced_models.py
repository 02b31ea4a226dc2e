"""Models that tests of the match trace: residual blocks, branches that are alike, layer scales."""

from collections.abc import Mapping, Sequence

import pytest

from compare.base.interface import Refused
from compare.base.trace import Trace
from compare.user_models.matching import match
from tests.unit.traces import Said, batch_norm, convolution, dense, parameters, renamed


def block(name: str, before: Sequence[str], width: int, *, shortcut: bool) -> list[Said]:
    """A basic residual block. The next layer follows NAME.bn2 and the shortcut."""
    layers = [
        convolution(f"{name}.conv1", (3, 3, width // 2 if shortcut else width, width), before),
        batch_norm(f"{name}.bn1", width, [f"{name}.conv1"]),
        convolution(f"{name}.conv2", (3, 3, width, width), [f"{name}.bn1"]),
        batch_norm(f"{name}.bn2", width, [f"{name}.conv2"]),
    ]
    if shortcut:
        layers += [
            convolution(f"{name}.short", (1, 1, width // 2, width), before),
            batch_norm(f"{name}.shortbn", width, [f"{name}.short"]),
        ]
    return layers


def resnet(blocks: int = 3) -> list[Said]:
    """Return residual blocks, the second with a shortcut of its own, and a dense layer."""
    layers = [convolution("stem", (3, 3, 3, 8), [""]), batch_norm("stembn", 8, ["stem"])]
    before: list[str] = ["stembn"]
    for index in range(blocks):
        shortcut = index == 1
        layers += block(f"b{index}", before, 8 if index < 1 else 16, shortcut=shortcut)
        before = [f"b{index}.bn2", *([f"b{index}.shortbn"] if shortcut else before)]
    return [*layers, dense("fc", (16, 10), before)]


def without(layers: list[Said], name: str) -> list[Said]:
    """The same model without one layer: what came after it comes after what it came after."""
    gone = next(each for each in layers if each.name == name)
    return [
        renamed(each, after=tuple(p for path in each.after for p in (gone.after if path == name else (path,))))
        for each in layers
        if each.name != name
    ]


def shortcut_first(layers: list[Said]) -> list[Said]:
    """Return the same model with the second block's shortcut executed before its main branch."""
    short = [each for each in layers if ".short" in each.name]
    rest = [each for each in layers if each not in short]
    at = next(index for index, each in enumerate(rest) if each.name == "b1.conv1")
    return rest[:at] + short + rest[at:]


def attention() -> list[Said]:
    """Return three dense layers that nothing but their names tells apart."""
    three = [dense(name, (4, 4), ["norm"]) for name in ("left", "right", "middle")]
    norm = renamed(batch_norm("norm", 4, [""]), role="layer-norm", shapes={"scale": (4,), "bias": (4,)})
    return [norm, *three, dense("fc", (4, 10), ["left", "right", "middle"])]


def scaled(count: int, *, is_module: bool) -> list[Said]:
    """Blocks with a layer scale: a module at the end of a block, or the block itself, which then comes first."""
    layers, before = [], ""
    for index in range(count):
        inner = convolution(f"c{index}", (3, 3, 4, 4), [before])
        wide, narrow = dense(f"w{index}", (4, 16), [inner.name]), dense(f"n{index}", (16, 4), [f"w{index}"])
        if is_module:
            layers += [inner, wide, narrow, parameters(f"s{index}", [narrow.name], gamma=(4,))]
        else:
            layers += [parameters(f"s{index}", [before], gamma=(4,)), inner, wide, narrow]
        before = f"s{index}"
    return [*layers, dense("fc", (4, 10), [before])]


def refused(a: Trace, b: Trace, given: Mapping[str, str] | None = None) -> str:
    """Return why two traces do not match. The table must fit a screen."""
    with pytest.raises(Refused) as caught:
        match(a, b, given)
    text = str(caught.value)
    lines = text.splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 100 for line in lines[1:-1])
    return text
