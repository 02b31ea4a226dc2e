"""The page in a real browser, at the width of a phone and of a desktop, in light and dark."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from compare.report import matrix
from compare.report.formats import html
from tests.unit import chromium, stored
from tests.unit.chromium import Tab
from tests.unit.mutations import HOSTILE_TEXTS
from tests.unit.result_factory import make_comparison, make_contender, make_result, typed

PROGRAM = chromium.find()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason=f"no browser is installed ({', '.join(chromium.NAMES)})"),
]

VIEWPORTS = {"phone": (375, 812), "desktop": (1280, 800)}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Generator[Tab]:
    assert PROGRAM is not None
    with chromium.opened(PROGRAM, tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name in stored.NAMES:
        (folder / name).write_text(html.render(matrix.report([typed(stored.result(name))])))
    (folder / "several").write_text(
        html.render(matrix.report(list(map(typed, [stored.result("faster"), stored.result("agree")]))))
    )
    (folder / "hostile").write_text(html.render(matrix.report([typed(_hostile())])))
    for path in folder.iterdir():
        path.rename(path.with_suffix(".html"))
    return folder


def _hostile() -> dict[str, Any]:
    names = [*(f"{text} {number}" for number, text in enumerate(HOSTILE_TEXTS[:4])), "x" * 300]
    comparisons = [make_comparison(name, baseline=names[0]) for name in names[1:]]
    contenders = [make_contender(name, settings={"key" * 100: names}) for name in names]
    return make_result(contenders=contenders, comparisons=comparisons, command=names, environment={"y" * 300: names})


def _faults(tab: Tab) -> list[Any]:
    """What a page did that it must not: requests, messages, violations of its policy, scrolling sideways."""
    requests = [each["request"]["url"] for each in tab.list_events("Network.requestWillBeSent")]
    found: list[Any] = [url for url in requests[1:] if not url.startswith("data:")]
    found += tab.list_events("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    width = tab.value("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    return found if width[0] <= width[1] else [*found, f"{width[0]} pixels wide in {width[1]}"]


@pytest.mark.parametrize("viewport", VIEWPORTS)
@pytest.mark.parametrize("name", [*stored.NAMES, "several", "hostile"])
def test_the_page_is_quiet_and_fits(tab: Tab, pages: Path, name: str, viewport: str) -> None:
    width, height = VIEWPORTS[viewport]
    tab.open(pages / f"{name}.html", width=width, height=height)
    tab.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert _faults(tab) == []
    assert tab.value("document.fonts.size") == 0
    # Every picture is seen as drawn: as wide as its column, no taller than it is meant to be.
    for wide, high, column in tab.value(
        "[...document.querySelectorAll('figure svg')].map(s => [s.getBoundingClientRect().width, "
        "s.getBoundingClientRect().height, s.parentElement.getBoundingClientRect().width])"
    ):
        assert 200 < wide <= column
        assert high > 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_and_text_take_the_readers_scheme(tab: Tab, pages: Path, scheme: str) -> None:
    tab.open(pages / "faster.html", width=375, height=812, scheme=scheme)
    ground = tab.value("getComputedStyle(document.body).backgroundColor")
    ink = tab.value("getComputedStyle(document.querySelector('figure svg text')).fill")
    light, dark = "rgb(255, 255, 255)", "rgb(27, 30, 34)"
    assert (ground, ink) == (light, dark) if scheme == "light" else ("rgb(20, 23, 27)", "rgb(233, 231, 227)")


@pytest.mark.parametrize(
    ("markup", "fault"),
    [
        ("<script>console.log(1)</script>", "script"),
        ('<p style="color: red">x</p>', "style"),
        ('<img src="http://192.0.2.1/x.png">', "img-src"),
        ("<style>p { color: red }</style>", "style"),
        (
            "<pre><span>" + "x" * 500 + "</span></pre><table><tr><td><nobr>" + "y" * 900 + "</nobr></table>",
            "pixels wide",
        ),
    ],
    ids=["script", "style attribute", "picture from elsewhere", "style", "too wide"],
)
def test_the_check_sees_what_it_is_for(tab: Tab, pages: Path, tmp_path: Path, markup: str, fault: str) -> None:
    text = (pages / "agree.html").read_text()
    (tmp_path / "bad.html").write_text(text.replace("</main>", f"{markup}</main>"))
    tab.open(tmp_path / "bad.html", width=375, height=812)
    assert fault in str(_faults(tab))
