#!/bin/sh
# Runs the tests on two workers, and then, one after another, those marked alone. The arguments go to pytest both times.
# With --quick first, it runs the tests of pure code and of the fake backend only.
set -u
cd "$(dirname "$0")/.."
no_tests=5
workers="--alone=not --numprocesses=2 --dist=loadgroup --benchmark-disable --durations=15"

# The tests start many processes. Without bytecode, each of them would compile its modules again, and so would pytest.
unset PYTHONDONTWRITEBYTECODE

# Two workers on two cores have one thread each: with more threads than cores, threads wait for each other in loops.
if [ "${1-}" = --quick ]; then
    OMP_NUM_THREADS=1 exec .venv/bin/python -m pytest $workers tests/unit tests/agreement tests/plugin "$@"
fi
OMP_NUM_THREADS=1 .venv/bin/python -m pytest $workers "$@"
first=$?
case $first in 0 | 1 | $no_tests) ;; *) exit $first ;; esac
.venv/bin/python -m pytest --alone=only "$@"
second=$?

# Arguments may select no test for one of the two calls. Without arguments, both have tests.
[ $second -ne $no_tests ] || [ $# -eq 0 ] || exit $first
[ $first -eq 0 ] || [ $first -eq $no_tests ] || exit $first
exit $second
