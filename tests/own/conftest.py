"""What all tests in this folder share."""

from tests.unoptimised import unoptimised as unoptimised
