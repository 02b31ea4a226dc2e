"""Write HTML: one page without network and scripts. Pictures and style are inside it."""

import base64
import hashlib
from typing import Any

from markupsafe import Markup

from compare.report import figures, svg
from compare.report.document import Report
from compare.report.formats import Format
from compare.report.palette import TONES
from compare.report.plots.canvas import Picture
from compare.report.sentences import make_plain


def render(report: Report) -> str:
    """Return the page. All text of a result is escaped, and the page's policy lets no script run."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # takes a while to import

    environment = Environment(
        loader=PackageLoader("compare.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
    )
    style = environment.get_template("page.css").render(light=_write_variables(0), dark=_write_variables(1))
    page = environment.get_template("page.html")
    return page.render(report=report, inline=_inline, style=Markup(style), policy=_write_policy(style)).lstrip() + "\n"


FORMAT = Format("html", "Write one page with everything.", lambda report, _, __: render(report))


def _write_policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _inline(picture: Picture, prefix: str) -> Markup:
    return svg.make_inline(figures.draw(picture, "svg", text=True), prefix, make_plain(picture.title))


def _write_variables(which: int) -> str:
    return " ".join(f"--{name}: {tone[which]};" for name, tone in TONES.items())


def _clean(value: Any) -> Any:
    return make_plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value
