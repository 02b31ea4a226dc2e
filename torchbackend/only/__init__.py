"""Modules without a counterpart in the JAX backend."""
