"""Import a framework without a search for garbage. This module imports nothing that takes time."""

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager

from compare.machine.variables import QUICK_IMPORT


@contextmanager
def collect_once() -> Generator[None]:
    """Look for garbage once, after the imports of the `with` block, if the parent allows it.

    An import makes little garbage. Looking for it again and again takes a fifth of the time.
    """
    if not os.environ.get(QUICK_IMPORT):
        yield
        return
    gc.disable()
    yield
    gc.collect()
    gc.enable()
