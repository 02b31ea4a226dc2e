"""Strict readings of what reports write: a page as its elements, LaTeX as its tables, Markdown as its words."""

import itertools
import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from compare.report import figures

VOID_TAGS = {"meta", "link", "br", "img", "hr", "input"}


@pytest.fixture
def empty_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pictures empty, because drawing takes most of a report's time."""
    empty = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'
    monkeypatch.setattr(figures, "draw", lambda *_, **__: empty)


class Page(HTMLParser):
    """A page, read element by element. An element that is not closed is an error."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.headings: list[tuple[int, str]] = []
        self.style = ""
        self._open: list[str] = []
        self._words: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    @property
    def text(self) -> str:
        """What a reader sees, style apart, words separated by one space."""
        return " ".join(" ".join(self._words).split())

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        assert len(attrs) == len(self.elements[-1][1]), f"an attribute twice in {tag}"
        if tag not in VOID_TAGS:
            self._open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append((int(tag[1]), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID_TAGS:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"{tag} closes nothing"
        assert self._open.pop() == tag, f"{tag} closes another element"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.style += data
            return
        self._words.append(data)
        if any(re.fullmatch("h[1-6]", tag) for tag in self._open):
            level, text = self.headings[-1]
            self.headings[-1] = level, text + data


def check_page(text: str) -> Page:
    """Read a page and check that nothing of it can run, load, or lead away."""
    page = Page(text)
    names = {tag for tag, _ in page.elements}
    assert not names & {"script", "iframe", "object", "embed", "form", "base", "img", "foreignobject", "animate"}
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
        for name in ("href", "src", "xlink:href", "action"):
            target = attributes.get(name, "#")
            assert target.startswith("#") or (tag, target) == ("link", "data:,"), (tag, target)
    assert page.text.isprintable(), "a character that shows nothing"
    assert page.of("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)), "an id twice"
    for _, attributes in page.elements:
        assert attributes.get("aria-labelledby", ids[0]) in ids
    levels = [level for level, _ in page.headings]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), "a heading level skipped"
    assert all(words.strip() for _, words in page.headings)
    return page


_ARGUMENT = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_COMMANDS = {
    *("begin", "end", "centering", "small", "caption", "label", "toprule", "midrule", "bottomrule", "includegraphics"),
    *("textbackslash", "textasciicircum", "textasciitilde", "textless", "textgreater", "textbar", "char", "ldots"),
    *("ensuremath", "mu", "circ", "allowbreak", "textbf", "dimexpr", "linewidth", "tabcolsep", "relax", "raggedright"),
    *("arraybackslash", "ifdim", "else", "fi", "quad"),
}


def check_latex(text: str) -> dict[str, list[list[str]]]:
    """Check that LaTeX holds known commands, matched braces and environments, and rows as wide as their table.

    Returns:
        the cells of each table by its label.
    """
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.search(r"[^\x00-\x7f\xc0-\xff]", body), "a character that TeX may not know"
    assert set(re.findall(r"\\([A-Za-z]+)", body)) <= _COMMANDS
    bare = re.sub(r"\\[\\{}$&#%_]", "", body)
    assert not re.search(r"[$#%_~\"<|]", re.sub(r"\\label\{[^}]*\}|\\includegraphics.*|>\{\\ragged", "", bare))
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0, "a brace closes nothing"
    assert depth == 0, "a brace is not closed"
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", body):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    return dict(map(_table, re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", body, re.DOTALL)))


def _table(text: str) -> tuple[str, list[list[str]]]:
    label = re.search(r"\\label\{tab:([^}]*)\}", text)
    assert label
    assert text.index(r"\caption{") < text.index(r"\begin{tabular}")
    inside = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0].replace(r"\midrule", "")
    rows = [re.split(r"(?<!\\)&", row) for row in inside.strip().removesuffix(r"\\").split(r"\\" + "\n")]
    assert len({len(row) for row in rows}) == 1, "rows of unequal width"
    assert not any(row[0].strip().startswith(("[", "*")) for row in rows), "an argument of the line break before"
    return label[1], [[cell.strip() for cell in row] for row in rows]


def check_markdown(text: str) -> str:
    """Check that Markdown holds nothing but headings, paragraphs, lists, tables, one code block and own pictures.

    Returns:
        the words that a reader sees.
    """
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    allowed = {"heading", "paragraph", "table", "thead", "tbody", "tr", "th", "td", "bullet_list", "list_item"}
    words: list[str] = []
    for token in tokens:
        kind = token.type.removesuffix("_open").removesuffix("_close")
        assert kind in {*allowed, "inline", "code_block"}, token
        if kind == "code_block":
            words.append(token.content)
        for child in token.children or ():
            assert child.type in ("text", "text_special", "code_inline", "image"), child
            words.append(child.content)
    return " ".join("".join(words).split())
