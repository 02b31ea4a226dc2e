"""This machine: its description, GPUs, cores, memory, load and environment variables."""
