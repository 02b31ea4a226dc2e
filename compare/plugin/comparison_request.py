"""What a test asks for: the contenders and settings of one comparison, by which its result is found again."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from compare.settings import naming

if TYPE_CHECKING:
    from compare.base.workloads import Workload
    from compare.settings.pair_spec import Request
    from compare.settings.plan import Plan


class Settings(TypedDict, total=False):
    """What a call of the fixture, or the marker, may say beside the workload.

    Names, meanings and defaults are those of `samestep compare`'s options, but that `energy` is off by default.
    `agreement=False` is --skip-agreement, `cold_compile=False` --skip-cold-compile; `request` says how a pair of one's
    own is brought together. `check=False` hands back a result that would otherwise fail the test.
    """

    contenders: Sequence[str]
    precision: str
    device: str
    rounds: int
    batch_size: int
    epochs: int
    seed: int
    margin: float
    data: str | Path
    images: int
    accumulate: int
    devices: int
    batch_norm: str
    agreement: bool
    deterministic: bool
    design: str
    energy: bool
    cold_compile: bool
    search_anew: bool
    deadline: float
    request: "Request"
    check: bool


class Asked(NamedTuple):
    """One comparison: contenders as written, and `settings` under the names of `Settings`, `workload` with them."""

    contenders: tuple[str, ...]
    settings: Mapping[str, Any]
    check: bool = True

    @property
    def names(self) -> list[str]:
        """The contenders' names, unique within the comparison."""
        return naming.names(self.contenders)

    @property
    def key(self) -> str:
        """The same text for two comparisons that are the same."""
        return json.dumps([self.contenders, dict(self.settings)], sort_keys=True, default=str)

    @property
    def slug(self) -> str:
        """A folder's name for a reader, unlike that of any other comparison."""
        said = [self.settings[name] for name in ("workload", "precision") if name in self.settings]
        words = [str(getattr(each, "name", each)) for each in said]
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join([*words, *self.contenders]))[:80]
        return f"{readable}-{hashlib.sha256(self.key.encode()).hexdigest()[:8]}"

    def plan(self, out: Path) -> "Plan":
        """Return the plan of this comparison, which writes to `out`.

        Raises:
            Refused: naming arguments as a test writes them.
        """
        from compare.base import arguments
        from compare.base.interface import Refused
        from compare.settings import plan

        settings: dict[str, Any] = {"energy": False, **self.settings}
        folder = settings.pop("data", None)
        try:
            return plan.make(self.contenders, out=out, data_folder=folder, **settings)
        except Refused as error:
            raise Refused(arguments.in_python(str(error), otherwise={})) from None


def merged(*layers: Mapping[str, Any]) -> Asked:
    """Return what layers of settings ask for together; a later one wins, and None leaves a setting open.

    Raises:
        TypeError: for a name that no setting has, or contenders that are no list of strings.
    """
    __tracebackhide__ = True  # the line of the test is the one to see
    settings = {name: value for layer in layers for name, value in layer.items() if value is not None}
    allowed = {"workload", *Settings.__annotations__}
    if unknown := sorted(settings.keys() - allowed):
        raise TypeError(f"samestep has no setting {unknown[0]!r}; allowed: {', '.join(sorted(allowed))}")
    contenders = settings.pop("contenders", naming.DEFAULT_CONTENDERS)
    if isinstance(contenders, str) or not all(isinstance(text, str) for text in contenders):
        raise TypeError(f"contenders={contenders!r} is not allowed; allowed: a list such as ['torch:tuned', 'jax']")
    check = settings.pop("check", True)
    return Asked(tuple(contenders), settings, check)


def layer(workload: "str | Workload | None" = None, **settings: Any) -> dict[str, Any]:
    """Return the arguments of a call or a marker, the workload being the one that needs no name."""
    return {"workload": workload, **settings}
