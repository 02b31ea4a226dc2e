"""Compiler flags and launch choices that a child gets through its environment: the one list, by backend and device.

A word of the knob `compiler-flags` stands for some variables. Flags of XLA are joined with the others in XLA_FLAGS.
"""

from collections.abc import Mapping

XLA_FLAGS = "XLA_FLAGS"
NO_FLAGS = "none"

FLAGS: Mapping[tuple[str, str], Mapping[str, Mapping[str, str]]] = {
    ("jax", "cpu"): {
        "fast-math": {XLA_FLAGS: "--xla_cpu_enable_fast_math=true"},
        "concurrent": {XLA_FLAGS: "--xla_cpu_enable_concurrency_optimized_scheduler=true"},
    },
    ("jax", "cuda"): {
        "latency-hiding": {XLA_FLAGS: "--xla_gpu_enable_latency_hiding_scheduler=true"},
        "cublaslt": {XLA_FLAGS: "--xla_gpu_enable_cublaslt=true"},
        "no-triton-gemm": {XLA_FLAGS: "--xla_gpu_enable_triton_gemm=false"},
    },
    ("torch", "cpu"): {
        "cpp-wrapper": {"TORCHINDUCTOR_CPP_WRAPPER": "1"},
    },
    ("torch", "cuda"): {
        "cpp-wrapper": {"TORCHINDUCTOR_CPP_WRAPPER": "1"},
        "multi-kernel": {"TORCHINDUCTOR_MULTI_KERNEL": "1"},
    },
}
"""The variables of each word, by backend and device."""

WORDS = (NO_FLAGS, *dict.fromkeys(word for words in FLAGS.values() for word in words))
"""All words of the knob, of any backend."""

KEPT_HEAP: Mapping[str, str] = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34)}
"""The variables with which the C library returns no freed memory (mallopt(3)). Linux's glibc reads them."""


def list_words(backend: str, device: str) -> tuple[str, ...]:
    """Return the words of the knob that a backend has on a device. The first one is `none`."""
    return (NO_FLAGS, *FLAGS.get((backend, device), {}))


def find_variables(backend: str, device: str, word: str) -> Mapping[str, str]:
    """Return the variables of a word, empty for `none`."""
    return FLAGS.get((backend, device), {}).get(word, {})


def read_settings(backend: str, device: str, variables: Mapping[str, str]) -> dict[str, bool | str]:
    """Return the value of `compiler-flags` and `kept-heap` that a process has with these variables."""
    words = [
        word
        for word, needed in FLAGS.get((backend, device), {}).items()
        if all(text in variables.get(name, "").split() for name, text in needed.items())
    ]
    keeps = device == "cpu" and all(variables.get(name) == value for name, value in KEPT_HEAP.items())
    return {"compiler-flags": next(iter(words), NO_FLAGS), "kept-heap": keeps}
