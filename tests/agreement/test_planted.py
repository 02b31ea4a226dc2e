"""Every planted bug is caught, at the right tensor; runs without one raise no alarm."""

import pytest

from tests.agreement import planted
from tests.agreement.planted import BUGS, PROBES, Bug, Clean

SEEDS = 50


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    return Clean(tmp_path_factory.mktemp("planted"))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.name} in {bug.side}")
def test_a_planted_bug_is_caught_at_the_right_tensor(bug: Bug, clean: Clean):
    found = planted.certify(bug, clean)
    assert not found.passed
    assert (found.first_mismatch or "").startswith(bug.first)
    assert bug.cause in (found.first_mismatch or "")


@pytest.mark.parametrize("probe", PROBES)
def test_without_a_bug_no_seed_raises_an_alarm(probe: str, clean: Clean):
    alarms = {
        seed: found.first_mismatch
        for seed in range(SEEDS)
        if not (found := clean.certificate(probe, "float64", seed)).passed
    }
    assert not alarms


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("probe", ["digits-cnn", "cifar-cnn", "cifar-resnet18"])
def test_without_a_bug_every_precision_certifies(probe: str, precision: str, clean: Clean):
    assert clean.certificate(probe, precision).first_mismatch is None


def test_both_sides_have_at_least_ten_bugs_of_at_least_24():
    sides = [bug.side for bug in BUGS]
    assert len(sides) >= 24
    assert min(sides.count("jax"), sides.count("torch")) >= 10
