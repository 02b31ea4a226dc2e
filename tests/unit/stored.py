"""Results of real runs on a CPU. Each file holds its command. Keys that came later have the value that then held."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "data"
NAMES = tuple(sorted(path.parent.name for path in FOLDER.glob("*/result.json")))


def path(name: str) -> Path:
    return FOLDER / name / "result.json"


def result(name: str) -> dict[str, Any]:
    """Return a stored result, free to be changed."""
    return json.loads(path(name).read_text())
