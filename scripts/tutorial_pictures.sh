#!/bin/sh
# Make the pictures of the tutorials again from runs on this machine's CPU, in about 7 minutes. Keep the machine quiet.
# Further arguments go to every run, for example --void-limit 64 on a machine that does not become quiet.
set -eu
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-.venv/bin/python}"
OUT="$(mktemp -d)"
trap 'rm -rf "$OUT"' EXIT
samestep() { "$PYTHON" -m compare "$@"; }
samestep tune torch jax --workload digits-cnn --device cpu --screen --out "$OUT/tune" "$@"
cp "$OUT/tune/tune.svg" docs/tutorials/pictures/tune.svg
samestep ladder --workload digits-cnn --device cpu --out "$OUT/ladder" "$@"
cp "$OUT/ladder/ladder.svg" docs/tutorials/pictures/ladder.svg
samestep ladder --workload digits-cnn --device cpu --rungs pruned --prune 0.5 --out "$OUT/pruned" "$@"
cp "$OUT/pruned/ladder.svg" docs/tutorials/pictures/pruned.svg
ls -l docs/tutorials/pictures
