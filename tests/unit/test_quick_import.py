import gc

import pytest

from compare.machine.variables import QUICK_IMPORT
from compare.worker import quick_import


@pytest.mark.parametrize("value", ["", "1"])
def test_garbage_of_imports_is_collected_once_if_the_parent_allows_it(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(QUICK_IMPORT, value)
    collections = list[str]()
    gc.callbacks.append(lambda phase, info: collections.append(phase) if info["generation"] == 2 else None)
    try:
        with quick_import.collect_once():
            assert gc.isenabled() is not bool(value)
    finally:
        gc.callbacks.pop()
    assert gc.isenabled()
    assert collections.count("start") == len(value)
