"""The framework-neutral side of samestep. It plans, measures, judges and reports, and imports no framework.

The Python interface has these names, each imported at its first use. `Workload`, `ModelSpec`, `OptimizerSpec` and
`Schedule` describe a training. `pair` makes a workload of a user's own models. `run` compares, and `certify` proves
agreement. An argument that is not allowed raises `Refused`.
"""

TYPE_CHECKING = False  # type checkers take it for True, and the import of `typing` would delay the start
if TYPE_CHECKING:
    from compare.api import certify as certify
    from compare.api import run as run
    from compare.base.interface import Refused as Refused
    from compare.base.workloads import ModelSpec as ModelSpec
    from compare.base.workloads import OptimizerSpec as OptimizerSpec
    from compare.base.workloads import Schedule as Schedule
    from compare.base.workloads import Workload as Workload
    from compare.settings.pair_spec import Request as Request
    from compare.settings.pair_spec import pair as pair

__version__ = "0.1.0"
__all__ = ["ModelSpec", "OptimizerSpec", "Refused", "Request", "Schedule", "Workload", "certify", "pair", "run"]

_WHERE = {
    **dict.fromkeys(("Workload", "ModelSpec", "OptimizerSpec", "Schedule"), "compare.base.workloads"),
    **dict.fromkeys(("certify", "run"), "compare.api"),
    "Refused": "compare.base.interface",
    "Request": "compare.settings.pair_spec",
    "pair": "compare.settings.pair_spec",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
