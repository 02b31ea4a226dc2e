"""XLA told to compile fast: compiling takes most of the time of tests that train with JAX.

Without optimisations, in one LLVM module a program, and by XLA's own code generator in place of MLIR's many passes: a
third of the processor time. Fusions and conversions stay. A
program computes the same, and its rounding differs no more than between two machines.

This holds for the tests' own process and for those that tests of several devices start. The certificates of
tests/agreement/test_twins.py, and every other program that a test starts, are of optimised code.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import pytest
from jax._src import compiler

_OPTION = "jax_disable_most_optimizations"
_FLAGS = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
VARIABLES: Mapping[str, str] = {
    _OPTION.upper(): "1",
    "XLA_FLAGS": " ".join(f"--{name}={str(value).lower()}" for name, value in _FLAGS.items()),
}
"""What tells a process that a test starts."""


@pytest.fixture(autouse=True, scope="module")
def unoptimised() -> Iterator[None]:
    """Leave out optimisations in the tests of every file under the conftest.py, or of the file, that imports this."""
    options, before = compiler.get_compile_options, jax.config.read(_OPTION)

    def fast(*arguments: Any, **named: Any) -> Any:
        found = options(*arguments, **named)
        found.env_option_overrides = [*found.env_option_overrides, *_FLAGS.items()]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", fast)
        jax.config.update(_OPTION, True)
        yield
        jax.config.update(_OPTION, before)
