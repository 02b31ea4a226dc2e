"""Pairs that `samestep agree` refuses with exit code 2 and one message, or takes with a note."""

import json
from pathlib import Path
from typing import NoReturn

import pytest

from compare.base.interface import ContenderFailed
from tests.own import asked, inside

BAD = "tests/own/bad.py"
LINEN, TORCH = f"{BAD}:good_linen", f"{BAD}:good_torch"

# Flax's reference, torch's, words of the refusal. What a factory itself can get wrong is in test_factories.py.
REFUSALS = {
    "no such file": (LINEN, "nowhere.py:model", ("nowhere.py", "no file")),
    "no such module": ("nowhere.models:model", TORCH, ("nowhere.models",)),
    "no such function": (LINEN, f"{BAD}:nonesuch", ("nonesuch", "good_torch")),
    "no function named": (LINEN, BAD, (BAD, "allowed: pkg.module:factory")),
    "raises": (f"{BAD}:raises", TORCH, ("FileNotFoundError", "no checkpoint")),
    "exits": (LINEN, f"{BAD}:exits", ("sys.exit",)),
    "needs an argument": (LINEN, f"{BAD}:needs_width", ("width", "--model-args")),
    "a text in place of a model, torch": (LINEN, f"{BAD}:returns_text", ("str", "torch.nn.Module")),
    "a text in place of a model, jax": (f"{BAD}:returns_text", TORCH, ("str", "flax")),
    "nothing in place of a model": (LINEN, f"{BAD}:returns_nothing", ("NoneType", "torch.nn.Module")),
    "a class in place of a model": (LINEN, f"{BAD}:returns_class", ("Identity", "torch.nn.Module")),
    "the other side's model, torch": (LINEN, LINEN, ("Sequential", "torch.nn.Module")),
    "the other side's model, jax": (TORCH, TORCH, ("Sequential", "flax")),
    "logits of another shape": (LINEN, f"{BAD}:seven_classes", ("7", "10")),
    "NaN among the weights, torch": (LINEN, f"{BAD}:nan_weights", ("NaN", "4.bias")),
    "a forward pass that fails": (LINEN, f"{BAD}:wrong_channels", ("wrong_channels", "RuntimeError")),
    "two outputs": (LINEN, f"{BAD}:two_outputs", ("different outputs", "same number")),
}
OPTIONS = {
    "no such argument": (["--model-args", "torch.depth=3"], ("depth", "classes")),
    "no such side": (["--model-args", "keras.classes=10"], ("keras",)),
    "an argument without a value": (["--model-args", "classes"], ("--model-args", "classes")),
    "no such allowance": (["--allow", "everything"], ("everything", "running-variance")),
    "no such map": (["--weights-map", "nowhere.json"], ("nowhere.json",)),
    "an input of two numbers": (["--input", "16x16"], ("--input", "16x16")),
    "an input without pixels": (["--input", "0x16x3"], ("--input", "0x16x3")),
    "no classes": (["--classes", "0"], ("--classes",)),
    "a workload beside a pair": (["--workload", "digits-cnn"], ("--workload",)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_pair_that_cannot_be_compared_is_refused(tmp_path: Path, name: str) -> None:
    jax, torch, said = REFUSALS[name]
    _refused(asked.agree(jax, torch, tmp_path), said)


def test_nan_is_refused_among_the_weights_that_training_starts_from(tmp_path: Path) -> None:
    answer = asked.agree(f"{BAD}:nan_linen", TORCH, tmp_path, "--weights-from", "jax")
    _refused(answer, ("NaN", "layers_0/bias"))


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_cannot_be_honoured_is_refused(tmp_path: Path, name: str) -> None:
    options, said = OPTIONS[name]
    _refused(asked.agree(LINEN, TORCH, tmp_path, *options), said)


def test_a_model_that_ends_its_process_is_a_contender_that_failed() -> None:
    done = asked.run("map", "--jax", LINEN, "--torch", f"{BAD}:is_killed", "--input", "16x16x3", "--classes", "10")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "samestep: the torch model: crash: trace: killed by signal 11 (SIGSEGV)\n"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ContenderFailed("timeout", "trace took longer than its deadline of 5 s"), 3),
        (ContenderFailed("oom", "trace: MemoryError: no message", raised=True), 3),
        (ContenderFailed("crash", "record: RuntimeError: expected Double but found Float", raised=True), 2),
    ],
    ids=["timeout", "out of memory", "an exception"],
)
@pytest.mark.parametrize("call", ["greet", "reply"])
def test_what_befalls_a_model_while_it_is_matched_decides_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, failure: ContenderFailed, code: int
) -> None:
    def fails(*_: object) -> NoReturn:
        raise failure

    monkeypatch.setattr(inside.Inside, call, fails)
    answer = asked.agree(LINEN, TORCH, tmp_path)
    assert (answer.code, answer.result) == (3 if call == "greet" else code, {})
    where = "the pair could not be traced" if call == "greet" else "the torch model"
    assert answer.error == f"samestep: {where}: {failure}\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"9.weight": "params/layers_0/kernel"}, ("9.weight", "0.weight")),
        ({"0.weight": "params/nowhere/kernel"}, ("params/nowhere/kernel", "params/layers_0/kernel")),
        ({"0.weight": "params/layers_3/kernel"}, ("0.weight", "params/layers_3/kernel")),
        ({"0.weight": 3}, ("0.weight",)),
    ],
    ids=["no such name in torch", "no such name in flax", "another shape", "not a name"],
)
def test_a_map_that_cannot_be_followed_is_refused(
    tmp_path: Path, change: dict[str, object], said: tuple[str, ...]
) -> None:
    file = tmp_path / "names.json"
    file.write_text(json.dumps(change))
    _refused(asked.agree(LINEN, TORCH, tmp_path / "out", "--weights-map", str(file)), said)


def test_what_a_factory_prints_is_noted(tmp_path: Path) -> None:
    answer = asked.agree(LINEN, f"{BAD}:prints", tmp_path)
    assert answer.code == 0, answer.text + answer.error
    assert f"{BAD}:prints printed to standard output: 'building the model'" in answer.text


def test_an_import_of_the_other_framework_is_noted() -> None:
    pair = ["--jax", f"{BAD}:imports_torch", "--torch", TORCH]
    done = asked.run("map", *pair, "--input", "16x16x3", "--classes", "10")  # in a process that has not imported it
    assert done.returncode == 0, done.stderr
    assert "imported torch, the other framework" in done.stderr
    assert json.loads(done.stdout)["0.weight"] == "params/layers_0/kernel"


def _refused(answer: asked.Answer, said: tuple[str, ...]) -> None:
    assert (answer.code, answer.text, answer.result) == (2, "", {}), answer.error
    assert answer.error.startswith("samestep: ")
    assert "Traceback" not in answer.error
    assert [each for each in said if each not in answer.error] == [], answer.error
