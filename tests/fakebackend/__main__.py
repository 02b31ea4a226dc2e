"""Serve the fake backend to samestep's runner."""

from tests.fakebackend.session import serve_as

serve_as("fake")
