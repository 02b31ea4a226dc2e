"""What the four memory figures mean, for every report that prints one."""

from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
    "live_peak_bytes": "most bytes held by live tensors at any time, counted by the framework's own allocator",
    "pool_peak_bytes": "most bytes that the framework's allocator had reserved from the device",
    "process_bytes": "bytes of the whole process (NVML on a GPU, peak resident set on a CPU), less those of a process "
    "that only imports the framework",
    "static_bytes": "the compiler's own plan for one step: arguments, outputs and temporaries (XLA only)",
}
