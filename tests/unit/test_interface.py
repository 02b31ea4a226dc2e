"""What backends and samestep share."""

import pytest

from compare.base.errors import shorten, take_first_line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("out\nof memory", "out"),
        ("\n  late\n", "late"),
        ("", "no message"),
        (" \n", "no message"),
        ("a" * 400, "a" * 400),
        ("a" * 401, f"{'a' * 396} ..."),
        ("four " * 100, f"{'four ' * 79}..."),
        ("backend='x' raised:\n\n  AssertionError: shape\n\nwhile", "backend='x' raised: AssertionError: shape"),
        ("announced:\n", "announced:"),
    ],
)
def test_an_error_is_told_in_one_line(message: str, line: str) -> None:
    assert take_first_line(RuntimeError(message)) == line


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("out of memory: E", "out of memory: E"),
        ("out of memory: Es", "out of ..."),
        ("out of mem : Error", "out of mem : ..."),
        ("outofmemoryoutofmemory", "outofmemoryo ..."),
    ],
)
def test_a_cut_text_says_so_after_a_whole_word(text: str, cut: str) -> None:
    assert shorten(text, 16) == cut
