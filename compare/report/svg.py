"""Make a drawn picture part of a page. It takes the page's colours and font, and needs no inline style."""

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


def make_inline(data: bytes, prefix: str, title: str) -> Markup:
    """Return an SVG file of samestep, with letters as text, as an element of an HTML page.

    A strict Content-Security-Policy forbids style attributes, so each declaration becomes an attribute. Colours become
    the page's variables. So a picture follows a light or dark page.

    Args:
        data: the file.
        prefix: makes the element's ids unique in the page.
        title: a description for readers who do not see the picture.
    """
    root = ElementTree.fromstring(data)
    for parent in root.iter():
        for child in list(parent):
            if _strip_namespace(child) in _DROPPED:
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


def _strip_namespace(element: Element) -> str:
    return element.tag.removeprefix(_SVG)


def _rewrite(element: Element, prefix: str) -> None:
    """Replace namespaces and style attributes, which a page must not have, and make ids unique."""
    element.tag = _strip_namespace(element)
    attributes = dict(element.attrib)
    for declaration in attributes.pop("style", "").split(";"):
        name, _, value = declaration.partition(":")
        if value and name.strip() not in _OF_THE_PAGE:
            attributes[name.strip()] = value.strip()
    if (target := attributes.pop(f"{_XLINK}href", None)) is not None:
        attributes["href"] = f"#{prefix}{target.removeprefix('#')}"
    if "id" in attributes:
        attributes["id"] = f"{prefix}{attributes['id']}"
    for name in ("fill", "stroke"):
        if name in attributes:
            attributes[name] = _VARIABLES.get(attributes[name], attributes[name])
    if "clip-path" in attributes:
        attributes["clip-path"] = _REFERENCE.sub(rf"url(#{prefix}\1)", attributes["clip-path"])
    element.attrib = attributes
