"""XLA told not to optimise in this process: compiling takes most of the time of tests that train with JAX.

Its fusions and conversions stay, LLVM compiles them in half of the time or less. What a program computes is the same,
and rounding differs no more than between two machines. The certificates of tests/agreement/test_twins.py, and every
program that a test starts, are of optimised code.
"""

from collections.abc import Iterator

import jax
import pytest

_OPTION = "jax_disable_most_optimizations"


@pytest.fixture(autouse=True, scope="module")
def unoptimised() -> Iterator[None]:
    """Leave out optimisations in the tests of every file under the conftest.py, or of the file, that imports this."""
    before = jax.config.read(_OPTION)
    jax.config.update(_OPTION, True)
    yield
    jax.config.update(_OPTION, before)
