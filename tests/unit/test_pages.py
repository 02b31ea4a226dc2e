"""Pages that are made from files of the repository are as the files say."""

import re
from importlib.metadata import version

import pytest

from benchmarks import pictures, tables
from tests.fakebackend.plans import ROOT


@pytest.mark.parametrize("gpu", tables.GPUS)
def test_the_page_of_a_gpus_results_is_up_to_date(gpu: str):
    page = tables.page(tables.FOLDER.with_name(gpu))
    assert page == tables.PAGE.with_name(f"{gpu}.md").read_text()
    for table in page.split("\n## ")[1:]:
        assert table.count("\n| ") > 2, "a table of two rows is empty"


def test_the_pictures_of_the_readme_are_up_to_date():
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints" / "cpu.txt").read_text(), re.MULTILINE)
    assert pinned
    found = pictures.pictures()
    if version("matplotlib") == pinned[1]:  # another one places letters and ticks a little differently
        assert {path: path.read_bytes() for path in found} == found
    readme = (ROOT / "README.md").read_text()
    for path, drawn in found.items():
        assert f'src="{path.relative_to(ROOT)}"' in readme
        # Whatever draws it, the caption in the file and the shape of the picture come from the result.
        assert _described(path.read_bytes()) == _described(drawn)


def _described(svg: bytes) -> list[str]:
    return re.findall(r"<(?:dc:title|dc:description)>[^<]*", svg.decode())
