from typing import Any

import pytest

from compare.reproduce import differences
from compare.reproduce.differences import Difference
from compare.results.model import from_json
from tests.unit.result_factory import make_contender, make_result


def after_run(stored: dict[str, Any], here: dict[str, Any]) -> list[Difference]:
    return differences.find_after_run(from_json(stored), from_json(here))


def test_leaves_that_differ_are_named_by_their_path_in_order() -> None:
    stored = {"python": "3.11", "gpus": [{"name": "A", "uuid": "1"}], "packages": {"torch": "2.11", "triton": "3"}}
    here = {"python": "3.11", "gpus": [{"name": "B", "uuid": "1"}], "packages": {"torch": "2.13"}, "git": None}
    assert list(differences.find_differences(stored, here)) == [
        Difference("gpus[0].name", "A", "B"),
        Difference("packages.torch", "2.11", "2.13"),
        Difference("packages.triton", "3", None),
    ]


def test_what_is_there_on_one_side_only_is_told_leaf_by_leaf() -> None:
    git = {"commit": "abc", "dirty": False}
    assert list(differences.find_differences({"git": git}, {"git": None})) == [
        Difference("git.commit", "abc", None),
        Difference("git.dirty", False, None),
    ]
    assert list(differences.find_differences({"gpus": []}, {"gpus": [{"name": "A"}]})) == [
        Difference("gpus[0].name", None, "A")
    ]
    assert list(differences.find_differences({"x": [1, 2]}, {})) == [
        Difference("x[0]", 1, None),
        Difference("x[1]", 2, None),
    ]


def test_the_load_and_the_clock_of_the_moment_are_no_differences() -> None:
    stored = {"cpu": {"load_average": [1.0, 2.0]}, "gpus": [{"sm_clock_mhz": 1980, "sm_clock_limit_mhz": 1980}]}
    here = {"cpu": {"load_average": [3.0]}, "gpus": [{"sm_clock_mhz": 345, "sm_clock_limit_mhz": 1700}]}
    assert list(differences.find_differences(stored, here)) == [Difference("gpus[0].sm_clock_limit_mhz", 1980, 1700)]


@pytest.mark.parametrize("weights", ["f" * 64, None])
def test_data_and_weights_are_compared_by_their_digests(weights: str | None) -> None:
    stored = make_result()
    found = differences.find_before_run(
        from_json(stored),
        stored["environment"] | {"python": "3.12"},
        {"data_sha256": "1" * 64, "weights_sha256": weights},
    )
    expected = [Difference("python", "3.11", "3.12"), Difference("data_sha256", "0" * 64, "1" * 64)]
    assert found[:2] == expected
    assert found[2:] == ([] if weights else [Difference("weights_sha256", "f" * 64, None)])


def test_versions_and_settings_of_contenders_are_compared_after_the_run() -> None:
    changed = make_contender("torch", settings={"compile": False, "threads": 2}, versions={"numpy": "2.2"})
    found = after_run(make_result(), make_result(contenders=[changed, make_contender("jax")]))
    assert found == [
        Difference("torch: versions.numpy", "2.1", "2.2"),
        Difference("torch: settings.compile", True, False),
        Difference("torch: settings.threads", None, 2),
    ]


def test_rounds_that_go_around_on_fewer_gpus_are_told() -> None:
    stored, here = make_result(spec={"rotation": 4}), make_result()
    assert after_run(stored, here) == [Difference("spec.rotation", 4, 1)]
    assert after_run(here, make_result(spec={"rotation": 1})) == []


def test_variables_of_contenders_are_compared() -> None:
    flags = "--xla_gpu_autotune_level=0"
    now = make_result(contenders=[make_contender("torch", variables={"XLA_FLAGS": flags}), make_contender("jax")])
    stored = make_result()
    assert after_run(stored, now) == [Difference("torch: variables.XLA_FLAGS", None, flags)]
