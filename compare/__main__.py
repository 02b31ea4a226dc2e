"""The console script `samestep`, and `python -m compare`."""

import signal
import sys

from compare.cli.exit_codes import end_at_once

# Every other import waits until `main` handles interrupts.

_LEAST_MEMORY = 2**30
_SHORTAGES = ("Too many open files", "Cannot allocate memory", "failed to map segment", "baseline optimizations")


def main() -> None:
    """Run the command line. An interrupt during the import ends the process at once, with one line."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # in the background a shell ignores interrupts
        signal.signal(signal.SIGINT, end_at_once)
    _check_memory_limits()
    try:
        from compare.cli.app import main as run
    except (ImportError, MemoryError, OSError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in _SHORTAGES):
            raise
        sys.stderr.write(f"samestep: cannot start: {str(error) or 'memory ran out'}\n")
        sys.exit(2)
    signal.signal(signal.SIGINT, handler)
    run()


def _check_memory_limits() -> None:
    """End if this process may have too little memory. Libraries would hang or abort in their import."""
    import resource

    for limit, option in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        allowed = resource.getrlimit(limit)[0]
        if allowed != resource.RLIM_INFINITY and allowed < _LEAST_MEMORY:
            sys.stderr.write(
                f"samestep: cannot start: this process may have only {allowed >> 20:,} MiB (ulimit {option}); "
                f"allowed: {_LEAST_MEMORY >> 20:,} MiB or more\n"
            )
            sys.exit(2)


if __name__ == "__main__":
    main()
