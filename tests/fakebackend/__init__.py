"""A backend in NumPy with a scripted clock, for tests that go through the real worker and runner.

Three names are served, `fake`, `other` and `third`, so that contenders of one run can behave differently. The variable
SAMESTEP_FAKE holds JSON: `folder` (for logs), and by name what `tests.fakebackend.script.Behaviour` lists.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from compare.base import knobs
from compare.settings import backends
from compare.settings.backends import BackendEntry

BACKENDS: Mapping[str, BackendEntry] = {
    "fake": BackendEntry("tests.fakebackend", ("numpy",)),
    "other": BackendEntry("tests.fakebackend.other", ("numpy",)),
    "third": BackendEntry("tests.fakebackend.third", ("numpy",)),
}


def entries() -> Iterator[tuple[Any, str, Any]]:
    """Yield a table of samestep's, a key and a value for all that makes the fake backends known, with every knob."""
    for name, backend in BACKENDS.items():
        yield backends.BUILT_IN, name, backend
        yield knobs.PARALLEL, name, ("ddp",)
        for knob in knobs.KNOBS.values():
            yield knob.mechanism, name, "fake"
