"""Tests use a cache of their own, and find no certificate of an earlier session in it."""

import importlib.util
import os
import shutil
from pathlib import Path

from compare.machine.variables import PROBES
from compare.store.entries import Store

_CACHE = Path.home() / ".cache" / "samestep-tests"

os.environ["XDG_CACHE_HOME"] = str(_CACHE)  # also for processes that tests start
os.environ[PROBES] = str(_CACHE / "torch-probes")  # otherwise torch compiles its probes again for each new cache
Store(_CACHE / "samestep").clear("certificates")
if importlib.util.find_spec("triton") and shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it as it is imported, and PyTorch imports Triton
