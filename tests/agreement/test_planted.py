"""Every planted bug is caught at the right tensor. Runs without a bug raise no alarm."""

from typing import Any

import pytest
from _pytest.mark import ParameterSet

from compare.base.workloads import WORKLOADS
from tests.planted import table
from tests.planted.bug import Bug
from tests.planted.bugs import BUGS
from tests.planted.certify import Clean, certify
from tests.planted.probes import PROBES
from tests.unoptimised import unoptimised as unoptimised

SEEDS = 50
THOROUGH = ("cifar-resnet18", "vgg16", "mobilenet-v2", "unet")
PRECISE = ["digits-cnn", "cifar-cnn", "cifar-resnet18", "vgg16", "mobilenet-v2", "unet", "cifar-cnn, two micro-batches"]
FEW_SEEDS = 10  # of a workload changed so that a bug matters in it, and of those that take long
LARGE = ("cifar-resnet18", "resnet50", "convnext-tiny", "vgg16", "mobilenet-v2", "unet")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    return Clean(tmp_path_factory.mktemp("planted"))


def beside(probe: str, *case: Any, id: str = "", thorough: bool = False) -> ParameterSet:
    """Return a case for the process that takes all cases of its probe, so that they share what is compiled."""
    marks = [pytest.mark.xdist_group(probe), *([pytest.mark.thorough] if thorough else [])]
    return pytest.param(*(case or (probe,)), id=id or probe, marks=marks)


@pytest.mark.parametrize("bug", [beside(bug.probe, bug, id=f"{bug.name} in {bug.side}") for bug in BUGS])
def test_a_planted_bug_is_caught_at_the_right_tensor(bug: Bug, clean: Clean):
    found = certify(bug, clean)
    assert not found.passed
    assert (found.first_mismatch or "").startswith(bug.first)
    assert bug.cause in (found.first_mismatch or "")
    assert table.words(table.line(bug, found)) in map(table.words, table.PAGE.read_text().splitlines())


@pytest.mark.parametrize(
    ("probe", "seeds"),
    [
        *(beside(p, p, SEEDS if p in WORKLOADS and p not in LARGE else FEW_SEEDS, id=p) for p in PROBES),
        *(beside(p, p, SEEDS, id=f"{p}, {SEEDS} seeds", thorough=True) for p in LARGE),
    ],
)
def test_without_a_bug_no_seed_raises_an_alarm(probe: str, seeds: int, clean: Clean):
    alarms = {
        seed: found.first_mismatch
        for seed in range(seeds)
        if not (found := clean.certificate(probe, "float64", seed)).passed
    }
    assert not alarms


@pytest.mark.parametrize("probe", [beside(probe, thorough=probe in THOROUGH) for probe in PRECISE])
def test_without_a_bug_every_precision_certifies(probe: str, clean: Clean):
    assert clean.certificate(probe, "bfloat16").first_mismatch is None
    assert clean.certificate(probe, "float16").first_mismatch is None


def test_every_workload_has_a_probe():
    assert set(WORKLOADS) <= {*PROBES, "mnist-cnn"}  # which is digits-cnn at another image size


def test_both_sides_have_at_least_ten_bugs_of_at_least_24():
    sides = [bug.side for bug in BUGS]
    assert len(sides) >= 24
    assert min(sides.count("jax"), sides.count("torch")) >= 10
