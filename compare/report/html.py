"""A report as one HTML page that needs nothing else: no network, no script, pictures and style inside it."""

import base64
import hashlib
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from compare.report import figures, svg
from compare.report.document import Report
from compare.report.palette import TONES
from compare.report.plots.canvas import Picture
from compare.report.sentences import plain


def render(report: Report) -> str:
    """Return the page. Everything that comes from a result is escaped; the page's policy lets no script run."""
    environment = Environment(
        loader=PackageLoader("compare.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
    )
    style = environment.get_template("page.css").render(light=_variables(0), dark=_variables(1))
    page = environment.get_template("page.html")
    return page.render(report=report, inline=_inline, style=Markup(style), policy=_policy(style)).lstrip() + "\n"


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _inline(picture: Picture, prefix: str) -> Markup:
    return svg.inline(figures.vector(picture, "svg", text=True), prefix, plain(picture.title))


def _variables(which: int) -> str:
    return " ".join(f"--{name}: {tone[which]};" for name, tone in TONES.items())


def _clean(value: Any) -> Any:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value
