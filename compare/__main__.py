"""`python -m compare` is `samestep`."""

from compare.cli import main

main()
