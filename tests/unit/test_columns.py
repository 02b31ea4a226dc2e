"""Tables on a narrow terminal: every figure of a wide one stands there, whole."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from compare.report import certificate_text, columns, matrix, terminal
from compare.reproduce import regression as judged
from compare.reproduce import regression_report
from compare.results import result_file
from compare.studies import scaling_report
from compare.studies import scaling_result as scalings
from tests.fakebackend.plans import ROOT
from tests.unit import stored
from tests.unit.mutations import H200_FOLDER
from tests.unit.result_factory import typed

FASTER = result_file.load(stored.path("faster"))
AGREE = result_file.load(H200_FOLDER / "agree-digits-cnn-float32" / "result.json")
SCALE = scalings.load(ROOT / "benchmarks" / "h200" / "scale-resnet50-jax" / "result.json")
CHANGES = judged.find_changes(typed(FASTER), typed(FASTER), 0.03)
SHOWN: dict[str, tuple[Callable[[Console], Any], list[str]]] = {
    "compare": (
        lambda console: terminal.render(typed(FASTER), console),
        ["33,311", "53,713", "0.2204", "97.01", "1.921"],
    ),
    "agree": (
        lambda console: certificate_text.render(typed(AGREE), console, verbose=True),
        ["2.1e-14", ">= 1e+06", "3.3e+07", "<= 0.01"],
    ),
    "scale": (
        lambda console: scaling_report.render(SCALE, console),
        ["7,947", "29,848", "0.946 (0.942\u20130.951)"],
    ),
    "diff": (
        lambda console: regression_report.render(CHANGES, 0.03, (), console),
        ["1.921", "66.3", "-0.8 to +0.8 %", "torch:stock step time", "UNCHANGED"],
    ),
    "matrix": (
        lambda console: terminal.render_matrix(matrix.make_overview(list(map(typed, [FASTER, FASTER]))), console),
        ["0.620", "(0.616", "0.625)"],
    ),
}


def _lines(render: Callable[[Console], Any], width: int) -> list[str]:
    stream = io.StringIO()
    render(Console(file=stream, width=width))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [24, 30, 40, 60, 80, 100])
@pytest.mark.parametrize("name", list(SHOWN))
def test_no_figure_is_cut_on_any_terminal(name: str, width: int) -> None:
    render, figures = SHOWN[name]
    lines = _lines(render, width)
    for figure in figures:
        assert any(figure in line for line in lines), figure
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)


def test_rows_that_do_not_fit_are_stacked() -> None:
    rows = [("semantic", "2.1e-14", "pass"), ("a gate of many words", "3.3e+07", "FAIL")]

    def shown(width: int) -> list[str]:
        return _lines(lambda console: columns.show(("gate", "value", ""), rows, console), width)

    assert [line.rstrip() for line in shown(60)][2] == "semantic               2.1e-14   pass"
    assert shown(20) == [
        "semantic",
        "  value  2.1e-14",
        "  pass",
        "a gate of many words",
        "  value  3.3e+07",
        "  FAIL",
    ]
    assert shown(16)[1] == "  value  2.1e-14"  # as wide as the terminal
    assert shown(12)[:3] == ["semantic", "  value", "    2.1e-14"]
    assert shown(8)[2] == "    2.1e-14"  # wider than the terminal, but whole


def test_words_are_broken_before_rows_are_stacked() -> None:
    rows = [("a tensor of many words", "2.1e-14")]
    lines = _lines(lambda console: columns.show(("tensor", "e64"), rows, console), 20)
    assert [line.rstrip() for line in lines[2:]] == ["a tensor     2.1e-14", "of many", "words"]
