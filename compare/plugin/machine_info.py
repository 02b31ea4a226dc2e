"""What pytest-benchmark's machine info gets: only what stays the same from run to run of one machine."""

from typing import Any

from compare.machine import environment, nvml


def describe() -> dict[str, Any]:
    """Return the GPUs' names, the driver, and the versions of the frameworks and their libraries, as JSON types."""
    found = nvml.describe()
    versions = {name: environment.find_version(name) for name in environment.DISTRIBUTIONS}
    return {
        "gpus": [gpu["name"] for gpu in found["gpus"]],
        "driver": found["driver"],
        "cuda_driver": found["cuda_driver"],
        "packages": {name: version for name, version in versions.items() if version is not None},
    }
