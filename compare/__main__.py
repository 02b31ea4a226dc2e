"""The console script `samestep`, and `python -m compare`."""

import os
import signal
import sys
from typing import NoReturn

_SHORTAGES = ("Too many open files", "Cannot allocate memory", "failed to map segment")


def main() -> None:
    """Run the command line. An interrupt during the import ends the process at once, with one line."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # in the background a shell ignores interrupts
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from compare.cli.app import main as run
    except (ImportError, MemoryError, OSError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in _SHORTAGES):
            raise
        sys.stderr.write(f"samestep: cannot start: {str(error) or 'memory ran out'}\n")
        sys.exit(2)
    signal.signal(signal.SIGINT, handler)
    run()


def _interrupt(number: int, _frame: object) -> NoReturn:
    """End as a signal ends a process. Some libraries would turn an exception in their import into another one."""
    os.write(2, b"samestep: interrupted\n")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    main()
