"""Serve the fake backend under the name `third`."""

from tests.fakebackend.session import serve_as

serve_as("third")
