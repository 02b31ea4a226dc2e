"""A backend in NumPy with a scripted clock, for tests that go through the real worker and runner.

Three names are served, `fake`, `other` and `third`, so that contenders of one run can behave differently. The variable
SAMESTEP_FAKE holds JSON: `folder` (for logs), and by name what `tests.fakebackend.script.Behaviour` lists.
"""

from collections.abc import Mapping

BACKENDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "fake": ("tests.fakebackend", ("numpy",)),
    "other": ("tests.fakebackend.other", ("numpy",)),
    "third": ("tests.fakebackend.third", ("numpy",)),
}
