"""Kernels that both frameworks call: one Triton source for PyTorch and JAX. Only backends import this folder."""
