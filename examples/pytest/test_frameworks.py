"""A suite that compares the frameworks: `pytest` skips it, and `pytest --benchmark` runs it.

Both tests name the same comparison, so it runs once.
"""

import pytest

COMPARISON = {"workload": "digits-cnn", "contenders": ["torch:stock", "jax:stock"], "precision": "float32", "epochs": 5}


def test_jax_keeps_up(samestep):
    """Take the fixture, name the comparison, and make assertions on the result.

    An assertion on the interval's lower end fails if the run shows a slowdown. An assertion on the upper end, such as
    `ratio.high < 1.05`, fails until the run shows that there is no slowdown, which takes more rounds.
    """
    result = samestep(**COMPARISON)
    assert result.agreement == "pass"
    assert result.ratio("jax:stock").low < 2


@pytest.mark.samestep(**COMPARISON)
def test_training_step(contender):
    """Name the comparison in the marker, and get a row of pytest-benchmark's table for each contender."""
    assert contender.compile_seconds is None or contender.compile_seconds < 60  # None: an earlier run has compiled it
