"""A drawn picture as part of a page: it takes the page's colours and font, and needs no inline style to be allowed."""

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from markupsafe import Markup

from compare.report.palette import TONES

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_VARIABLES = {tone.light: f"var(--{name})" for name, tone in TONES.items()} | {TONES["paper"].light: "none"}
_DROPPED = {"metadata", "style"}
_OF_THE_PAGE = {"font-family", "font"}
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def inline(data: bytes, prefix: str, title: str) -> Markup:
    """Return an SVG file, drawn by us with its letters as text, as an element of an HTML page.

    Style attributes, which a strict Content-Security-Policy does not let through, become attributes of their own;
    colours become the page's variables, so that a picture is light on light and dark on dark paper.

    Args:
        data: the file.
        prefix: makes the element's ids unique in the page.
        title: what the picture shows, for readers who do not see it.
    """
    root = ElementTree.fromstring(data)
    for parent in root.iter():
        for child in list(parent):
            if _local(child) in _DROPPED:
                parent.remove(child)
    for element in root.iter():
        _rewrite(element, prefix)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": title,
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _local(element: Element) -> str:
    return element.tag.removeprefix(_SVG)


def _rewrite(element: Element, prefix: str) -> None:
    """Replace what an HTML page does not have (namespaces, style attributes) and make ids unique."""
    element.tag = _local(element)
    found = dict(element.attrib)
    for declaration in found.pop("style", "").split(";"):
        name, _, value = declaration.partition(":")
        if value and name.strip() not in _OF_THE_PAGE:
            found[name.strip()] = value.strip()
    if (target := found.pop(f"{_XLINK}href", None)) is not None:
        found["href"] = f"#{prefix}{target.removeprefix('#')}"
    if "id" in found:
        found["id"] = f"{prefix}{found['id']}"
    for name in ("fill", "stroke"):
        if name in found:
            found[name] = _VARIABLES.get(found[name], found[name])
    if "clip-path" in found:
        found["clip-path"] = _REFERENCE.sub(rf"url(#{prefix}\1)", found["clip-path"])
    element.attrib = found
