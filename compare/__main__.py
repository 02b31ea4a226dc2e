"""The console script `samestep`, and `python -m compare`."""

import signal


def main() -> None:
    """Run the command line. An interrupt during the import ends the process at once, without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # in the background a shell ignores interrupts
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from compare.cli.app import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
