"""Read commands and code blocks of the pages."""

import re
import shlex

from tests.fakebackend.plans import ROOT

TUTORIALS = tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "tutorials").glob("*.md")))
GUIDES = tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "howto").glob("*.md")))
ON_A_GPU = "# needs an NVIDIA GPU"


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[tuple[list[str], bool]]:
    """Return the words of each command in a page's blocks, and whether it needs a GPU."""
    found: list[tuple[list[str], bool]] = []
    for block in blocks(page, "sh"):
        lines = [line for line in block.replace("\\\n", " ").splitlines() if not line.startswith("#")]
        found += [(shlex.split(line, comments=True), ON_A_GPU in block) for line in lines]
    return found


def table_commands(page: str) -> list[tuple[list[str], bool]]:
    """Return the same for the commands in a page's tables."""
    rows = "\n".join(line for line in (ROOT / page).read_text().splitlines() if line.startswith("|"))
    return [(shlex.split(command), False) for command in re.findall(r"`((?:samestep|python -m pytest) .*?)`", rows)]
