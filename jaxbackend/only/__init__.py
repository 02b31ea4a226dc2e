"""Modules without a counterpart in the PyTorch backend."""
