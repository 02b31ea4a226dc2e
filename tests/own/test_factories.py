"""`compare.worker.factories`: samestep gets a model from any factory, or tells what is wrong."""

import hashlib
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from compare.base.interface import Refused
from compare.worker import factories
from tests.fakebackend.plans import ROOT

BAD = ROOT / "tests/own/bad.py"
Written = Callable[[str], str]

REFUSALS = [
    (f"{BAD}:nonesuch", {}, "has no 'nonesuch'; it has: raises, is_killed, exits,"),
    (f"{BAD}:not_callable", {}, "not_callable is of type dict; allowed: a function that returns a model"),
    (f"{BAD}:raises", {}, "the factory raised FileNotFoundError: no checkpoint at /models/best.pt"),
    (f"{BAD}:exits", {}, "the factory called sys.exit('usage: train.py CONFIG')"),
    (f"{BAD}:needs_width", {}, "the factory needs 'width'; give it with --model-args width=VALUE"),
    (f"{BAD}:returns_text", {"depth": 3}, "the factory takes no argument 'depth'; allowed with --model-args: nothing"),
    (f"{BAD}:needs_width", {"wide": 3}, "takes no argument 'wide'; allowed with --model-args: width, classes"),
    ("nowhere.py:model", {}, "there is no file nowhere.py"),
    ("nowhere:model", {}, "there is no module nowhere in this folder or installed"),
    ("nowhere.models:model", {}, "module nowhere.models cannot be found"),
    (str(BAD), {}, "names no factory; allowed: pkg.module:factory or path/to/file.py:factory"),
    (f"{BAD}:", {}, "names no factory"),
    (":model", {}, "names no factory"),
    (f"{BAD}:two words", {}, "names no factory"),
]
MODULES = [
    ("raise RuntimeError('no licence')", "raised RuntimeError: no licence"),
    ("import sys; sys.exit(7)", "called sys.exit(7)"),
    ("def model(:", "raised SyntaxError"),
    ("import nowhere_at_all", "raised ModuleNotFoundError: No module named 'nowhere_at_all'"),
]


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Forget what a test imports, and from where."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write a file of that text, and give the reference of its `model`."""

    def write(text: str) -> str:
        (tmp_path / "written.py").write_text(text)
        return f"{tmp_path / 'written.py'}:model"

    return write


@pytest.mark.parametrize(("reference", "arguments", "said"), REFUSALS, ids=[said[:40] for *_, said in REFUSALS])
def test_a_factory_that_gives_no_model_is_refused(reference: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as caught:
        factories.make(reference, arguments, offered={}, other="nowhere")
    assert reference in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_may_import_the_package_that_it_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_net"
    package.mkdir()
    (package / "parts.py").write_text("def model(): return 'theirs'")
    (package / "models.py").write_text("from their_net.parts import model")
    monkeypatch.chdir(tmp_path)
    assert factories.make("their_net/models.py:model", {}, offered={}, other="nowhere").model == "theirs"


@pytest.mark.parametrize(("text", "said"), MODULES, ids=[said for _, said in MODULES])
def test_a_file_that_cannot_be_imported_is_refused(written: Written, text: str, said: str) -> None:
    reference = written(text)
    for _ in range(2):  # a failed import must not count as done
        with pytest.raises(Refused) as caught:
            factories.make(reference, {}, offered={}, other="nowhere")
        assert f"{reference}: importing" in str(caught.value)
        assert said in str(caught.value)


def test_arguments_win_over_what_is_offered_and_that_is_given_where_it_is_named(written: Written) -> None:
    reference = written("def model(width, dtype='default', depth=1): return width, dtype, depth")
    offered = {"dtype": "offered", "width": 1, "rngs": "nobody asked"}
    assert factories.make(reference, {"width": 8}, offered=offered, other="nowhere").model == (8, "offered", 1)


def test_a_factory_of_any_arguments_gets_those_that_were_given(written: Written) -> None:
    made = factories.make(written("def model(**values): return values"), {"a": 1}, offered={"rngs": 2}, other="nowhere")
    assert made.model == {"a": 1}


def test_the_source_that_is_hashed_is_the_factorys(written: Written) -> None:
    text = "def model(): return 3"
    made = factories.make(written(text), {}, offered={}, other="nowhere")
    assert (made.model, made.source_sha256) == (3, hashlib.sha256(text.encode()).hexdigest())
    assert made.notes == ()


def test_what_is_printed_is_noted_and_kept_from_the_pipe(written: Written, capfd: pytest.CaptureFixture[str]) -> None:
    reference = written("print('importing')\ndef model():\n    print('building')\n    return 3")
    (note,) = factories.make(reference, {}, offered={}, other="nowhere").notes
    assert note == f"{reference} printed to standard output: 'importing'"
    assert capfd.readouterr().out == ""


def test_the_other_framework_is_noted_where_the_factory_brings_it_in(written: Written, tmp_path: Path) -> None:
    (tmp_path / "otherframework.py").write_text("")
    reference = written("def model():\n    import otherframework\n    return 3")
    first, again = (factories.make(reference, {}, offered={}, other="otherframework").notes for _ in range(2))
    assert first == (f"{reference} imported otherframework, the other framework, into this side's process",)
    assert again == ()


def test_a_file_may_import_its_neighbours_and_may_have_the_name_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("value = 5")
    (tmp_path / "numpy.py").write_text("from neighbour import value\ndef model(): return value")
    before = sys.modules.get("numpy")
    assert factories.make(f"{tmp_path}/numpy.py:model", {}, offered={}, other="nowhere").model == 5
    assert sys.modules.get("numpy") is before


def test_a_model_that_lacks_an_input_is_told_how_to_name_it() -> None:
    def call(x: object, t: object) -> None:
        del x, t

    with pytest.raises(TypeError) as raised:
        call(1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert "--input t=SHAPE, or t=int:BELOW" in factories.suggest_inputs(raised.value)
    assert factories.suggest_inputs(TypeError("unsupported operand")) == ""
