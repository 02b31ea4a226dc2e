"""Stored results: repeat them, compare them, pack them and verify them."""
