"""Every planted bug is caught, at the right tensor; runs without one raise no alarm."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from compare.workloads import WORKLOADS
from tests.planted import table
from tests.planted.bug import Bug
from tests.planted.bugs import BUGS
from tests.planted.certify import Clean, certify
from tests.planted.probes import PROBES

SEEDS = 50
VARIANT_SEEDS = 10  # of a workload changed so that a bug matters in it
JAX_OPTIMISATIONS = "jax_disable_most_optimizations"


@pytest.fixture(scope="module")
def unoptimised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clean]:
    # Every bug is a new program, compiled in a third of the time; what a bug means does not depend on it.
    jax.config.update(JAX_OPTIMISATIONS, True)
    yield Clean(tmp_path_factory.mktemp("planted"))
    jax.config.update(JAX_OPTIMISATIONS, False)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.name} in {bug.side}")
def test_a_planted_bug_is_caught_at_the_right_tensor(bug: Bug, unoptimised: Clean):
    found = certify(bug, unoptimised)
    assert not found.passed
    assert (found.first_mismatch or "").startswith(bug.first)
    assert bug.cause in (found.first_mismatch or "")
    assert table.words(table.line(bug, found)) in map(table.words, table.PAGE.read_text().splitlines())


@pytest.mark.parametrize("probe", PROBES)
def test_without_a_bug_no_seed_raises_an_alarm(probe: str, tmp_path: Path):
    clean, seeds = Clean(tmp_path), SEEDS if probe in WORKLOADS else VARIANT_SEEDS
    alarms = {
        seed: found.first_mismatch
        for seed in range(seeds)
        if not (found := clean.certificate(probe, "float64", seed)).passed
    }
    assert not alarms


@pytest.mark.parametrize(
    "probe",
    ["digits-cnn", "cifar-cnn", "cifar-resnet18", "vgg16", "mobilenet-v2", "unet", "cifar-cnn, two micro-batches"],
)
def test_without_a_bug_every_precision_certifies(probe: str, tmp_path: Path):
    clean = Clean(tmp_path)
    assert clean.certificate(probe, "bfloat16").first_mismatch is None
    assert clean.certificate(probe, "float16").first_mismatch is None


def test_every_workload_has_a_probe():
    assert set(WORKLOADS) <= {*PROBES, "mnist-cnn"}  # which is digits-cnn at another image size


def test_both_sides_have_at_least_ten_bugs_of_at_least_24():
    sides = [bug.side for bug in BUGS]
    assert len(sides) >= 24
    assert min(sides.count("jax"), sides.count("torch")) >= 10
