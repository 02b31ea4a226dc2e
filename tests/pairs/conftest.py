"""Fixtures of all tests in this folder."""

from tests.unoptimised import unoptimised as unoptimised
