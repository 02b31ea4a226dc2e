"""The console script `samestep`, and `python -m compare`."""

import signal


def main() -> None:
    """Run the command line; an interrupt while it is still imported ends the process at once, without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # a shell has interrupts ignored by what it starts in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from compare.cli.app import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
