"""The contenders and settings of one comparison that a test asks for. They identify its result in the session."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compare.settings import options
from compare.settings.options import Settings

if TYPE_CHECKING:
    from compare.base.workloads import Workload
    from compare.settings.plan import Plan


SETTINGS = sorted({*options.list_python_names("compare"), "check"} - {"out"})
"""The settings that a marker and a call of the fixture take.

They have the names, meanings and defaults of `compare.run`, except that `energy` is off by default. `check=False`
returns a result that would otherwise fail the test.
"""


class ComparisonRequest(NamedTuple):
    """One comparison: contenders as written, and `settings` under the names of `SETTINGS`."""

    contenders: tuple[str, ...]
    settings: Mapping[str, Any]
    check: bool = True

    @property
    def names(self) -> list[str]:
        """The contenders' names, unique within the comparison."""
        return options.make_names(self.contenders)

    @property
    def key(self) -> str:
        """A text that two comparisons share only if they are the same."""
        return json.dumps([self.contenders, dict(self.settings)], sort_keys=True, default=str)

    @property
    def slug(self) -> str:
        """A readable name of a folder, unique to this comparison."""
        values = [self.settings[name] for name in ("workload", "precision") if name in self.settings]
        words = [str(getattr(value, "name", value)) for value in values]
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join([*words, *self.contenders]))[:80]
        return f"{readable}-{hashlib.sha256(self.key.encode()).hexdigest()[:8]}"

    def make_plan(self, out: Path) -> "Plan":
        """Return the plan of this comparison, with its result in the folder `out`.

        Raises:
            Refused: for settings that are not allowed, by their names in Python.
        """
        from compare.base import arguments
        from compare.base.interface import Refused
        from compare.settings import plan

        settings: dict[str, Any] = {"energy": False, **self.settings}
        try:
            return plan.make(Settings(contenders=self.contenders, out=out, **settings))
        except Refused as error:
            raise Refused(arguments.rename_options(str(error), otherwise={})) from None


def merge(*layers: Mapping[str, Any]) -> ComparisonRequest:
    """Return the comparison that several layers of settings ask for. A later layer wins, and None says nothing.

    Raises:
        TypeError: for an unknown setting, or contenders that are no list of texts.
    """
    __tracebackhide__ = True  # pytest then shows the line of the test
    settings = {name: value for layer in layers for name, value in layer.items() if value is not None}
    allowed = SETTINGS
    if unknown := sorted(settings.keys() - allowed):
        from compare.base.errors import suggest  # difflib would slow every start of pytest

        question = suggest(unknown[0], allowed)
        raise TypeError(f"samestep has no setting {unknown[0]!r}; {question}allowed: {', '.join(allowed)}")
    contenders = settings.pop("contenders", options.DEFAULT_CONTENDERS)
    if isinstance(contenders, str) or not all(isinstance(text, str) for text in contenders):
        raise TypeError(f"contenders={contenders!r} is not allowed; allowed: a list such as ['torch:tuned', 'jax']")
    check = settings.pop("check", True)
    return ComparisonRequest(tuple(contenders), settings, check)


def to_layer(workload: "str | Workload | None" = None, **settings: Any) -> dict[str, Any]:
    """Return the arguments of a call or a marker as settings. Only the workload needs no name."""
    return {"workload": workload, **settings}
