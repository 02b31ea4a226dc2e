"""A valid, full result of two contenders, for tests of whatever reads or writes results."""

import json
from copy import deepcopy
from typing import Any

from compare.base import typed_json
from compare.results import model, verdicts

_GATES = [
    {"name": "semantic", "value": 3.1e-13, "limit": 1e-10, "passed": True, "worst_tensor": "gradient/conv1.kernel"},
    {"name": "precision", "value": 1.8, "limit": 10.0, "passed": True, "worst_tensor": "update/dense2.bias"},
]


def make_contender(name: str = "torch", step: float = 2.5e-3, **overrides: Any) -> dict[str, Any]:
    """Return a contender that takes `step` seconds per step, with top-level keys replaced by `overrides`."""
    contender: dict[str, Any] = {
        "name": name,
        "backend": name.partition(":")[0].partition("#")[0],
        "tuning": "compiled",
        "status": "ok",
        "reason": None,
        "unproven": None,
        "settings": {"compile": True},
        "variables": {},
        "versions": {"numpy": "2.1"},
        "kernel_search": None,
        "compile_seconds": 12.34,
        "cached_compile_seconds": 1.234,
        "first_step_seconds": 0.4567,
        "warmup_seconds": 1.5,
        "steady": True,
        "unsteady_rounds": 0,
        "step_seconds": {
            "estimate": step,
            "median": step,
            "mean": step * 1.01,
            "iqr": step * 0.02,
            "interval": {"estimate": step, "low": step * 0.99, "high": step * 1.01, "confidence": 0.95},
            "samples": [[step, step * 1.01, step * 0.99]] * 10,
            "windows": [[[start, start + 0.1] for start in (1.0, 1.3, 1.4)]] * 10,
            "steps_per_block": 40,
        },
        "images_per_second": 64 / step,
        "memory": {
            "live_peak_bytes": 12 * 2**20,
            "pool_peak_bytes": 24 * 2**20,
            "process_bytes": 300 * 2**20,
            "static_bytes": None,
            "absent": {"static_bytes": "torch has no static plan"},
        },
        "energy": {
            "joules_per_step": None,
            "idle_watts": None,
            "steps": None,
            "seconds": None,
            "reason": "the run trains on the CPU",
        },
        "communication": None,
        "training": {"loss": [2.3, 0.5, 0.0421], "train_accuracy": 0.9991, "test_accuracy": 0.9833},
    }
    return {**contender, **deepcopy(overrides)}


def make_comparison(contender: str = "jax", verdict: str = "FASTER", **overrides: Any) -> dict[str, Any]:
    """Return a comparison with torch and a ratio that fits the verdict."""
    estimate, low, high = {
        "FASTER": (0.699, 0.688, 0.711),
        "SLOWER": (1.43, 1.406, 1.453),
        "EQUIVALENT": (1.001, 0.996, 1.006),
        "INCONCLUSIVE": (1.01, 0.98, 1.041),
        "INVALID": (0.699, 0.688, 0.711),
    }[verdict]
    comparison: dict[str, Any] = {
        "baseline": "torch",
        "contender": contender,
        "ratio": {"estimate": estimate, "low": low, "high": high, "confidence": 0.95},
        "verdict": verdict,
        "rounds": 10,
        "margin": 0.01,
        "detectable": 0.0234,
        "outliers": [],
        "batch_size": None,
        "reason": "the semantic gate failed" if verdict == "INVALID" else None,
    }
    return {**comparison, **deepcopy(overrides)}


def make_result(**overrides: Any) -> dict[str, Any]:
    """Return a valid result of torch against jax. Each override replaces a top-level key, or `spec` keys one by one."""
    result: dict[str, Any] = {
        "schema_version": 1,
        "id": "20260131-120000-abcdef",
        "created": "2026-01-31T12:00:00Z",
        "command": ["samestep", "compare", "torch", "jax"],
        "spec": {
            "workload": "digits-cnn",
            "contenders": ["torch", "jax"],
            "batch_size": 64,
            "accumulate": 1,
            "devices": 1,
            "rotation": 1,
            "machines": 1,
            "batch_norm": "sync",
            "precision": "float32",
            "device": "cpu",
            "rounds": 10,
            "rounds_requested": 10,
            "seed": 0,
            "epochs": 30,
            "margin": 0.01,
            "confidence": 0.95,
            "image": [8, 8, 1],
            "classes": 10,
            "model": {"family": "simple", "features": 32},
            "optimizer": {"name": "adam", "learning_rate": 0.001},
            "label_smoothing": 0.0,
            "parameter_count": 34826,
            "data_source": "digits",
            "data_folder": None,
            "images": None,
            "data_sha256": "0" * 64,
            "train_images": 1437,
            "test_images": 360,
            "weights_sha256": "f" * 64,
            "agreement_requested": True,
            "energy_requested": True,
            "cold_compile_requested": True,
            "search_anew_requested": False,
            "deterministic": False,
            "deadline_seconds": None,
            "design": "alternating",
            "design_reason": None,
            "task": "train",
            "batch_sizes": None,
        },
        "environment": {"python": "3.11", "cpu": {"model": "Example CPU"}},
        "contenders": [make_contender("torch", 2.5e-3), make_contender("jax", 1.7475e-3)],
        "comparisons": [make_comparison()],
        "agreement": {
            "status": "pass",
            "precision": "float32",
            "reason": None,
            "pairs": [
                {
                    "baseline": "torch",
                    "contender": "jax",
                    "status": "pass",
                    "gates": _GATES,
                    "first_mismatch": None,
                    "notes": [],
                    "kept": None,
                    "tensors": [],
                }
            ],
            "gates": _GATES,
            "first_mismatch": None,
            "accuracies": {},
            "twin_accuracies": {},
            "trajectory": {},
            "kind": "pair",
        },
        "voided": [],
        "telemetry": {
            "reason": "the run trains on the CPU",
            "cost_cores": None,
            "lists_processes": False,
            "samples": {},
            "others": [],
            "foreign_cores": [0.0] * 10,
            "idle_cores": [None] * 10,
        },
    }
    result = json.loads(json.dumps(result))  # unlike deepcopy, two uses of one list become two lists
    result["spec"].update(overrides.pop("spec", {}))
    return {**result, **deepcopy(overrides)}


def make_watched(voided: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return a valid result of a GPU, with telemetry over its ten rounds of half a second, some of them void."""
    result = make_result(spec={"device": "cuda"})
    for contender in result["contenders"]:
        contender["step_seconds"]["windows"] = [[[n, n + 0.5] for _ in range(3)] for n in range(1, 11)]
    samples: dict[str, list[Any]] = {
        "seconds": [tick / 10 for tick in range(120)],
        "sm_clock_mhz": [1980] * 120,
        "temperature_celsius": [None] * 120,
        "power_watts": [400.0 + tick for tick in range(120)],
        "clock_reasons": [4] * 120,
    }
    result["telemetry"] |= {"reason": None, "samples": samples}
    result["voided"] = [{"round": number, "reason": "software thermal slowdown"} for number in voided]
    result["comparisons"] = [make_comparison(rounds=10 - len(voided))]
    return result


def typed(result: dict[str, Any]) -> model.Result:
    """Return a result object as a typed result."""
    return model.from_json(result)


def typed_comparison(comparison: dict[str, Any]) -> model.Comparison:
    return typed_json.read(model.Comparison, comparison)


def complete(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result object with everything that follows from its samples."""
    return model.to_json(verdicts.complete_result(model.from_json(result)))
