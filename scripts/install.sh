#!/bin/sh
# Makes .venv with samestep, both frameworks and the development tools, at the versions of constraints/.
# One line on standard error for each stage; pip's own output, only where a stage fails.
set -eu
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log" "$log.torch"' EXIT

stage() {
    what=$1
    echo "samestep: $what" >&2
    shift
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        echo "samestep: failed: $what: $*" >&2
        exit 1
    fi
}

found=$(scripts/prerequisites.sh)
build=${found%% *}
python=$(echo "$found" | cut -d' ' -f2)
pip=".venv/bin/python -m pip --disable-pip-version-check install -q -c constraints/$build.txt"

if [ "$python" != .venv/bin/python ]; then
    stage "making .venv with $python" "$python" -m venv --clear .venv
fi

if [ "$build" = cuda ]; then
    stage "installing the CUDA builds of jax and torch (several GB), and the tools" $pip -e '.[cuda,dev]'
else
    # The default registry's torch for Linux is the CUDA build, gigabytes that a machine without a GPU has no use for.
    # PyTorch's own index has the CPU build; without it the install still works.
    index=https://download.pytorch.org/whl/cpu
    extra=
    if [ "$(uname -s)" = Linux ] && .venv/bin/python -c "
import signal, urllib.request
signal.alarm(5)  # ends a look-up of the name that hangs, which the time-out does not cover
urllib.request.urlopen('$index/torch/', timeout=3)" 2>/dev/null; then
        extra="--extra-index-url $index"
    fi
    torch=$(grep '^torch==' constraints/cpu.txt)
    side_by_side() { # each keeps one core busy; without what torch needs, no two write the same package
        $pip $extra --no-deps "$torch" >"$log.torch" 2>&1 &
        $pip -e '.[jax,dev]' || { wait; return 1; }
        wait $! || { cat "$log.torch"; return 1; }
    }
    stage "installing samestep, jax and the tools, and the CPU build of torch" side_by_side
    stage "installing what torch needs" $pip $extra "$torch"
fi

echo "$build" >.venv/.stamp
echo "samestep: .venv is ready ($build build)" >&2
