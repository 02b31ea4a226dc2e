#!/bin/sh
# Runs the tests on two workers, then, one by one, those marked alone. The arguments go to pytest both times; a call
# that they select no test for is none. Without arguments there are some that run alone.
set -u
cd "$(dirname "$0")/.."
no_tests=5

# The tests start processes by the thousand. Where Python may not write bytecode, each would compile what it imports anew.
.venv/bin/python -m compileall -q compare jaxbackend torchbackend tests || exit 1

# Two workers on two cores leave each a thread: threads beyond the cores wait for each other in loops.
OMP_NUM_THREADS=1 .venv/bin/python -m pytest --alone=not --numprocesses=2 --dist=loadgroup --benchmark-disable "$@"
first=$?
case $first in 0 | 1 | $no_tests) ;; *) exit $first ;; esac
.venv/bin/python -m pytest --alone=only "$@"
second=$?

[ $second -ne $no_tests ] || [ $# -eq 0 ] || exit $first
[ $first -eq 0 ] || [ $first -eq $no_tests ] || exit $first
exit $second
