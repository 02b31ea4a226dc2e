#!/bin/sh
# Runs the tests on two workers. The arguments go to pytest.
# With --quick first, it runs the tests of pure code and of the fake backend only.
set -eu
cd "$(dirname "$0")/.."

# The tests start many processes. Without bytecode, each of them would compile its modules again, and so would pytest.
unset PYTHONDONTWRITEBYTECODE

folders=
[ "${1-}" != --quick ] || folders="tests/unit tests/agreement tests/plugin"
# Two workers on two cores have one thread each: with more threads than cores, threads wait for each other in loops.
OMP_NUM_THREADS=1 exec .venv/bin/python -m pytest --numprocesses=2 --dist=loadgroup --benchmark-disable \
    --durations=15 $folders "$@"
