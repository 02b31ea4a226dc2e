#!/bin/sh
# Runs the tests on two workers, then, one by one, those marked alone. The arguments go to pytest both times; a call
# that they select no test for is none.
set -u
cd "$(dirname "$0")/.."
NO_TESTS=5

call() {
    .venv/bin/python -m pytest "$@"
}

call --alone=not --numprocesses=2 --dist=loadgroup --benchmark-disable "$@"
first=$?
case $first in 0 | 1 | $NO_TESTS) ;; *) exit $first ;; esac
call --alone=only "$@"
second=$?

[ $second -ne $NO_TESTS ] || exit $first
[ $first -eq 0 ] || [ $first -eq $NO_TESTS ] || exit $first
exit $second
