"""Serve the fake backend under the name `other`."""

from tests.fakebackend.session import serve_as

serve_as("other")
