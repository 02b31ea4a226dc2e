"""The pictures of the README, as `samestep report --figures` draws them, from one result file and nothing else.

python -m benchmarks.pictures
"""

from collections.abc import Mapping
from pathlib import Path

from benchmarks import tables
from compare.base import files
from compare.report import figures, matrix
from compare.results import result_file

SOURCE = tables.FOLDER / "resnet50-bfloat16" / result_file.FILE_NAME
FOLDER = tables.PAGE.parent / "pictures"
NAMES = "ratio", "steps"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    files.write(pictures())


def pictures() -> Mapping[Path, bytes]:
    """Return what each picture's file holds."""
    drawn = matrix.report([result_file.load(SOURCE)]).pictures()
    return {FOLDER / f"{name}.svg": figures.vector(drawn[name], "svg") for name in NAMES}


if __name__ == "__main__":
    main()
