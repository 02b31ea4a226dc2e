"""The gate `resources`: what slows one side alone, and what the user accepts."""

from typing import Any

import pytest

from compare.agreement import unequal_resources

EQUAL: dict[str, Any] = {
    "threads": 2,
    "usable_cores": 2,
    "instruction_set": "avx512",
    "compiler_effort": "full",
    "cpu_quota": None,
}
OTHERS = {"threads": 1, "usable_cores": 1, "instruction_set": "avx2", "compiler_effort": "level 0", "cpu_quota": 0.5}


def test_equal_resources_pass_and_unknown_ones_are_not_judged() -> None:
    assert unequal_resources.judge(EQUAL, EQUAL).passed
    assert unequal_resources.judge(EQUAL, {"usable_cores": 2}).passed
    assert unequal_resources.describe_differences(EQUAL, EQUAL) is None


@pytest.mark.parametrize("name", unequal_resources.NAMES)
def test_an_unequal_resource_fails_by_name_unless_the_user_accepts_it(name: str) -> None:
    key = unequal_resources.NAMES[name]
    limited = {**EQUAL, key: OTHERS[key]}
    gate = unequal_resources.judge(EQUAL, limited)
    assert (gate.name, gate.value, gate.passed, gate.worst_tensor) == ("resources", 1, False, name)
    text = unequal_resources.describe_differences(EQUAL, limited, causes={key: ["A", "B"]})
    assert text is not None
    assert text.startswith(f"unequal resources: {name} {EQUAL[key]} against {OTHERS[key]} (see A, B)")
    assert "--unequal" in text
    assert unequal_resources.judge(EQUAL, limited, [name]).passed
    assert unequal_resources.describe_differences(EQUAL, limited, [name]) is None


def test_threads_and_cores_of_several_devices_are_not_judged() -> None:
    several = {**EQUAL, "devices": 2, "threads": 1, "usable_cores": 1}
    assert unequal_resources.judge(EQUAL, several).passed
    assert not unequal_resources.judge(EQUAL, {**several, "instruction_set": "avx2"}).passed
