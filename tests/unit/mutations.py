"""Result files and bundles as an attacker, a bad disk or a hurried editor would leave them: hypothesis strategies."""

import json
import math
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from compare.agreement import trajectory
from compare.agreement.trajectory import Curves
from compare.results import result_file
from tests.unit.result_factory import complete, make_contender, make_result

_STEP = ("logits", "loss", "gradient/dense.kernel", "buffer/norm.mean", "update/dense.kernel")
_WHOLE = ("evaluation/logits", "delta/dense.kernel", "delta/norm.mean")
TENSORS = [*(f"step{step}/{name}" for step in (1, 2, 3) for name in _STEP), *_WHOLE]
"""Those of a small model's certificate."""

H200_FOLDER = Path(__file__).resolve().parents[1] / "data" / "h200"
H200 = sorted(H200_FOLDER.glob("*/result.json"))
"""Results of real runs on an NVIDIA H200. Keys that came later have the value that then always held."""


def consistent() -> dict[str, Any]:
    """Return a result with every key. Its figures and verdicts follow from its samples."""
    sides = [make_contender("torch", 2.5e-3), make_contender("jax", 1.7475e-3)]
    for side, phase in zip(sides, (0.0, 1.0), strict=True):
        step = side["step_seconds"]
        base = step["median"]
        step["samples"] = [[base * (1 + 0.004 * math.sin(phase + 7 * r + b)) for b in range(6)] for r in range(10)]
        step["windows"] = [[[float(9 * r + b), 9 * r + b + 0.11] for b in range(6)] for r in range(10)]
    telemetry = make_result()["telemetry"] | {"foreign_cores": [0.01] * 9 + [0.4]}
    voided = [{"round": 10, "reason": "other programs kept 0.40 cores busy"}]
    agreement: dict[str, Any] = make_result()["agreement"]
    agreement["accuracies"] = {"torch": [0.98, 0.981, 0.979], "jax": [0.98, 0.982, 0.979]}
    agreement["trajectory"] = {
        name: {"loss": [2.0 + shift, 1.0 + shift, 0.5 + shift], "envelope": [1e-6, 1e-5, 1e-4]}
        for name, shift in (("torch", 0.0), ("jax", 1e-6))
    }
    figures = {
        "e64": 1e-14,
        "e32": 1e-6,
        "scaling": 1e8,
        "noise": 1e-7,
        "baseline_error": 1e-7,
        "contender_error": 2e-7,
    }
    tensors = [{"name": name, **figures} for name in TENSORS]
    gates = [
        {"name": name, "value": value, "limit": limit, "passed": True, "worst_tensor": worst}
        for name, value, limit, worst in (
            ("semantic", 1e-14, 1e-10, "step1/logits"),
            ("scaling", 1e8, 1e6, "step1/logits"),
            ("precision", 2e-7 / 1e-7, 10.0, "step1/gradient/dense.kernel"),
            ("settings", 0.0, 0.0, None),
            ("update", 1.0, 2.0, "dense.kernel"),
        )
    ]
    curves = (Curves(np.array(each["loss"]), np.array(each["envelope"])) for each in agreement["trajectory"].values())
    accuracies = trajectory.judge_accuracies(agreement["accuracies"]["torch"], agreement["accuracies"]["jax"])
    gates += [asdict(trajectory.judge_losses(*curves)), asdict(accuracies)]
    agreement["pairs"][0] |= {"tensors": tensors, "gates": gates, "notes": ["rounding"]}
    return complete(make_result(contenders=sides, telemetry=telemetry, voided=voided, agreement=agreement))


def on_a_gpu() -> dict[str, Any]:
    """Return the same with telemetry of a GPU, on which an Xid came in the second round."""
    result = consistent()
    ticks = range(95)
    samples = {
        "seconds": [float(tick) for tick in ticks],
        "sm_clock_mhz": [1980] * 95,
        "memory_clock_mhz": [3201] * 95,
        "temperature_celsius": [40 + tick % 3 for tick in ticks],
        "power_watts": [600.0, None] * 47 + [None],
        "clock_reasons": [4] * 95,
        "foreign": [[]] * 95,
        "own": [2] * 95,
        "uncorrected_errors": [0] * 95,
        "xids": [[79] if tick == 11 else [] for tick in ticks],
    }
    telemetry = {"reason": None, "cost_cores": 0.004, "lists_processes": True, "samples": samples, "others": []}
    return complete(
        json.loads(
            json.dumps(
                {
                    **result,
                    "spec": result["spec"] | {"device": "cuda", "precision": "tf32"},
                    "telemetry": telemetry | {"others": [], "foreign_cores": [0.0] * 10, "idle_cores": [None] * 10},
                    "voided": [{"round": 2, "reason": "Xid 79"}],
                }
            )
        )
    )


SOURCES = [consistent(), on_a_gpu(), *(result_file.load(path) for path in H200 if "digits" in path.parent.name)]

HOSTILE_TEXTS = (
    "",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "a | b\n| --- |\n# [x](javascript:y) `z` *w* www.example.org",
    r"\input{/etc/passwd} % $x^2$ \end{tabular} & # _ ~ ^",
    "=1+1",
    "$\\frac{1$",
    "\x00\x1b[31m\u202e\ud800\ufffe",
    "\N{CJK UNIFIED IDEOGRAPH-4E2D}\N{SNOWMAN} é µ",
    "x" * 500,
    "<!-- -->]]>",
    "[2em]",
    "*",
)

HOSTILE: list[Any] = [
    *HOSTILE_TEXTS,
    None, True, False, 0, 1, -1, 2, 10**6, 2**31, 2**63 - 1, -(2**63), 2**63, 0.0, -0.0, 0.5, 1.0, 1e-12, 5e-324, 1e9,
    1e308, -1e308, math.nan, math.inf, "", "NaN", "pass", "fail", "skipped", "ok", "oom", "cuda", "INVALID", "FASTER",
    "torch", "jax", "\x1b[31mred\x07", "[red]x[/red]", "<script>alert(1)</script>", "../../etc/passwd", "\ud800", "\0",
    "x" * 3000, [], [[]], [None], {}, {"": None}, [1.0, 2.0], [[1.0]], ["torch", "torch"],
]  # fmt: skip


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value. Of a list, return only its first and last one."""
    found = [path] if path else []
    keys = (
        list(tree) if isinstance(tree, dict) else sorted({0, len(tree) - 1}) if isinstance(tree, list) and tree else []
    )
    return found + [place for key in keys for place in places(tree[key], (*path, key))]


_KINDS = ("like", "like", "like", "like", "drop", "double", "scale", "key", "any")


def results_mutated(most: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """Return results with one to `most` places dropped, doubled, scaled, renamed or replaced."""
    return st.one_of([changed(source, most) for source in SOURCES])


@st.composite
def changed(draw: st.DrawFn, result: dict[str, Any], most: int = 5) -> dict[str, Any]:
    """Draw a result that differs from a given one in one to `most` places."""
    found = deepcopy(result)
    here = places(result)
    for _ in range(draw(st.integers(1, most))):
        mutate(found, draw(st.sampled_from(here)), draw(st.sampled_from(_KINDS)), draw)
    return found


@st.composite
def damaged(draw: st.DrawFn, result: dict[str, Any]) -> bytes:
    """Draw the bytes of a result's file, cut off, or with one to four of them replaced."""
    data = bytearray(text(result))
    if draw(st.booleans()):
        return bytes(data[: draw(st.integers(0, len(data) - 1))])
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def mutate(tree: Any, path: tuple[Any, ...], kind: str, draw: Any) -> None:
    """Change the value at a path, if there still is one. `draw` chooses from a strategy."""
    holder, key = tree, path[-1]
    try:
        for step in path[:-1]:
            holder = holder[step]
        value = holder[key]
    except (KeyError, IndexError, TypeError):
        return
    if kind == "drop":
        del holder[key]
    elif kind == "double" and isinstance(holder, list):
        holder.insert(key, deepcopy(value))
    elif kind == "scale" and isinstance(value, (int, float)):
        holder[key] = value * draw(st.sampled_from((-1, 0, 1e-9, 0.5, 1.01, 2, 1e9)))
    elif kind == "key" and isinstance(holder, dict):
        holder[draw(st.sampled_from(("", "x", "\x1b[2J", "torch", "jax#2")))] = holder.pop(key)
    elif isinstance(holder, (dict, list)):
        # The schema stops most values of another type. Values of the same type meet the readers.
        alike = [each for each in HOSTILE if type(each) is type(value)] if kind == "like" else HOSTILE
        holder[key] = deepcopy(draw(st.sampled_from(alike)))  # a later step may change it


def text(result: Any) -> bytes:
    """Return a result as a file holds it, NaN literals included."""
    return json.dumps(result).encode()
