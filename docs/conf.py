"""Settings of Sphinx. `make docs` builds the site, and reference pages are generated first."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs import generate  # noqa: E402 -- after the path is set

project = "samestep"
copyright = "the samestep authors, Apache-2.0"
extensions = ["myst_parser"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "samestep"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["tables.css"]
templates_path = []
nitpicky = True
smartquotes = False  # "--" in a reason is an option

generate.write_pages(ROOT / "docs" / "reference")
