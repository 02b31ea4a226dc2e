#!/bin/sh
# Attacks samestep: 100 kills at random moments, 10 of them of real runs, 1,000 hostile files, and resources that run out.
# SEED chooses the moments and the files.
set -u
cd "$(dirname "$0")/.."
seed=${SEED:-0}
failed=0
OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.attack.hostile_files "$seed" 1000 & # one core, beside the fake runs
files=$!
OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.attack.kills "$seed" 90 0 || failed=1
wait $files || failed=1
OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.attack.kills "$seed" 0 10 || failed=1
OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/attack --benchmark-disable -q || failed=1
exit $failed
