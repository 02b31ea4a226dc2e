#!/bin/sh
# Finds what samestep needs from the system, and prints it on one line: BUILD PYTHON COMPILER.
#
# BUILD is SAMESTEP_BUILD, else what .venv was made with, else "cuda" where an NVIDIA GPU answers and "cpu" elsewhere.
# PYTHON is .venv's own where it serves, else the first that does of SAMESTEP_PYTHON or the names below.
# Where something is missing, says which package has it, and exits 2.
set -u
cd "$(dirname "$0")/.."
missing=0

say() { echo "samestep: $*" >&2; }

# want TEXT DEBIAN FEDORA MACOS: name what is missing, and the command that installs it.
want() {
    missing=1
    say "$1"
    if [ "$(uname -s)" = Darwin ]; then
        say "    macOS:          $4"
    else
        say "    Debian, Ubuntu: apt-get install $2"
        say "    Fedora:         dnf install $3"
    fi
}

build=${SAMESTEP_BUILD:-$(cat .venv/.stamp 2>/dev/null)}
case $build in
    cpu | cuda) ;;
    "") if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then build=cuda; else build=cpu; fi ;;
    *) say "SAMESTEP_BUILD is '$build'; allowed: cpu, cuda"; exit 2 ;;
esac
# jax 0.11, the CUDA build's, has no release for Python 3.11.
if [ "$build" = cuda ]; then minor=12; else minor=11; fi

# lack PYTHON: say what that Python lacks: nothing, or the first of "version", "venv", "headers". A name that does
# not start (a version manager's placeholder, for example) lacks its version.
lack() {
    "$1" - "$minor" "$2" 2>/dev/null <<'PYTHON' || echo version
import importlib.util, os, sys, sysconfig

needed = ("venv", "ensurepip", *sys.argv[2:])
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
if sys.version_info < (3, int(sys.argv[1])):
    print("version")
elif not all(importlib.util.find_spec(module) for module in needed):
    print("venv")
else:
    print("" if os.path.exists(headers) else "headers")
PYTHON
}

python= nearest= nearest_lack=version
for candidate in .venv/bin/python ${SAMESTEP_PYTHON:-python3.13 python3.12 python3.11 python3}; do
    if [ "$candidate" = .venv/bin/python ]; then found=$(lack "$candidate" pip); else found=$(lack "$candidate" venv); fi
    if [ -z "$found" ]; then
        python=$candidate
        break
    elif [ "$found" != version ] && [ "$nearest_lack" = version ]; then
        nearest=$candidate nearest_lack=$found
    fi
done
if [ -z "$python" ]; then
    case $nearest_lack in
        version) what="Python 3.$minor or newer is missing (needed by the $build build)" ;;
        venv) what="$nearest has no venv and ensurepip" ;;
        headers) what="$nearest has no C headers (Python.h, which torch.compile needs)" ;;
    esac
    want "$what" "python3 python3-venv python3-dev" "python3 python3-devel" "brew install python@3.13"
fi

# torch.compile calls the compiler that CXX names, else g++ (clang++ on macOS), and no other.
if [ "$(uname -s)" = Darwin ]; then compiler=${CXX:-clang++}; else compiler=${CXX:-g++}; fi
if ! $compiler --version >/dev/null 2>&1; then
    want "the C++ compiler $compiler, which torch.compile needs, is missing" g++ gcc-c++ "xcode-select --install"
    for other in g++ clang++ c++; do
        if $other --version >/dev/null 2>&1; then say "    or use the one that is here: export CXX=$other"; break; fi
    done
fi

if [ "$missing" = 1 ]; then exit 2; fi
echo "$build $python $compiler"
