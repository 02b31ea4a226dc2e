"""Instruction sets, quotas and variables that may slow one side down."""

import subprocess
import sys
from pathlib import Path

import pytest

from compare.machine import known_variables, resources
from tests.fakebackend.plans import ROOT

_IMPORT = """
import os
from compare.machine import known_variables
before = set(os.environ)
import compare.cli.app, compare.execution.phases
added = {name: value for name, value in os.environ.items() if name not in before}
print(*known_variables.find_unknown(added, 1))
"""


@pytest.mark.parametrize(
    ("written", "level"),
    [
        ("Intel SSE4.1", "sse4"),
        ("AVX", "avx"),
        ("DEFAULT", "avx"),
        ("Intel AVX2 with Intel DL Boost", "avx2"),
        ("AVX512_CORE", "avx512"),
        ("Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions", "avx512"),
        ("Intel AVX-512 with Intel DL Boost and bfloat16 support", "avx512_bf16"),
        ("AVX512_CORE_AMX", "amx"),
        ("", "amx"),
        ("something new", "amx"),
    ],
)
def test_libraries_write_instruction_sets_in_many_ways(
    written: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_find_best_level", lambda: len(resources._LEVELS) - 1)
    assert resources.lower_instruction_set([written]) == level
    monkeypatch.setattr(resources, "_find_best_level", lambda: 1)
    assert resources.lower_instruction_set([written]) == ("sse4" if level == "sse4" else "avx")
    monkeypatch.setattr(resources, "_find_best_level", lambda: None)
    assert resources.lower_instruction_set([written]) is None


def test_a_quota_is_read_in_cores(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert list(resources._read_quota(tmp_path)) == [1.5]
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert list(resources._read_quota(tmp_path)) == []
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "cpu.cfs_period_us").write_text("100000")
    assert list(resources._read_quota(tmp_path)) == [0.5]
    (tmp_path / "cpu.cfs_quota_us").write_text("-1")
    assert list(resources._read_quota(tmp_path)) == []


def test_no_variable_that_samestep_itself_sets_is_unknown() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_unknown_variables_of_the_frameworks_are_named() -> None:
    known = {"OMP_NUM_THREADS": "1", "CUDA_VERSION": "13", "JAX_PLATFORMS": "cpu", "HOME": "/", "TF_VAR_x": "1"}
    assert list(known_variables.find_unknown(known, 1)) == []
    unknown = {
        "KMP_BLOCKTIME": "0",
        "MKL_CBWR": "COMPATIBLE",
        "TF_XLA_FLAGS": "",
        "TORCHINDUCTOR_LAYOUT_OPTIMIZATION": "0",
    }
    assert list(known_variables.find_unknown(known | unknown, 1)) == list(unknown)
    flags = {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2 --xla_cpu_prefer_vector_width=128"}
    assert list(known_variables.find_unknown(flags, 1)) == ["XLA_FLAGS --xla_cpu_prefer_vector_width"]
    assert list(known_variables.find_unknown({"NCCL_ALGO": "Ring"}, 1)) == []
    assert list(known_variables.find_unknown({"NCCL_ALGO": "Ring"}, 2)) == ["NCCL_ALGO"]
