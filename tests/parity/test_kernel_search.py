"""A session without a search for kernels tells XLA so for its programs, even in a process that searches."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from compare.settings import tunings
from jaxbackend import tuning

NO_SEARCH = {"xla_gpu_autotune_level": 0}


@pytest.mark.parametrize(
    ("platform", "search", "flags", "options"),
    [
        ("gpu", True, "", None),
        ("gpu", False, "", NO_SEARCH),
        ("gpu", False, "--xla_gpu_autotune_level=4", None),  # holds for every program of the process
        ("cpu", False, "", None),
    ],
)
def test_xla_times_no_kernels_where_none_are_searched_for(
    monkeypatch: pytest.MonkeyPatch, platform: str, search: bool, flags: str, options: dict[str, Any] | None
):
    given, jit = list[Any](), jax.jit

    def look(*arguments: Any, **named: Any) -> Any:
        given.append(named["compiler_options"])
        return jit(*arguments, **named)

    monkeypatch.setattr(jax, "jit", look)
    monkeypatch.setenv("XLA_FLAGS", flags)
    values = {**tunings.resolve("jax", "stock", "cpu", "digits-cnn"), "kernel-search": search}
    assert float(tuning.compile_step(jnp.sin, values, platform)(0.0)) == 0.0  # XLA knows these options
    assert given == [options]
