"""Pages that are made from files of the repository are as the files say."""

from benchmarks import tables
from compare import results


def test_the_page_of_h200_results_is_up_to_date():
    found = {path: results.load(path) for path in sorted(tables.FOLDER.glob("*/result.json"))}
    assert found
    assert tables.page(found) == tables.PAGE.read_text()
