"""A comparison's result, as a test or a caller of `compare.run` gets it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Ratio(NamedTuple):
    """A contender's time per step over the baseline's, with its interval: below 1 is faster."""

    estimate: float
    low: float
    high: float
    confidence: float


class Contender(NamedTuple):
    """The measurements of one contender. None stands for an absent figure.

    Attributes:
        name: unique within the comparison; a repeated contender is named `torch#2`.
        status: `ok`, `oom`, `crash`, `timeout` or `refused`, with the `reason`.
        compile_seconds: compile time of the first step, into an empty cache.
        step_seconds: geometric mean of the median blocks of the rounds that count.
        images_per_second: batch size by step time.
        memory: bytes by the names of `compare.machine.memory.DEFINITIONS`.
        blocks: seconds per step of every block of every round that counts, in the order of rounds.
    """

    name: str
    status: str
    reason: str | None
    compile_seconds: float | None
    step_seconds: float | None
    images_per_second: float | None
    memory: Mapping[str, int | None]
    blocks: tuple[float, ...]


class Result:
    """One comparison's result.

    Attributes:
        raw: the whole result object (`compare/results/result.schema.json`).
        path: its file.
    """

    def __init__(self, raw: dict[str, Any], path: Path) -> None:
        self.raw, self.path = raw, path

    @property
    def baseline(self) -> str:
        """The name of the contender that the others are compared with."""
        return self.raw["contenders"][0]["name"]

    @property
    def agreement(self) -> str:
        """`pass`, `fail` or `skipped`."""
        return self.raw["agreement"]["status"]

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """All contenders, the baseline first."""
        void = {entry["round"] - 1 for entry in self.raw["voided"]}
        return tuple(_contender(contender, void) for contender in self.raw["contenders"])

    def contender(self, name: str) -> Contender:
        """Return one contender by name.

        Raises:
            LookupError: for an unknown name.
        """
        __tracebackhide__ = True  # pytest then shows the line of the test
        by_name = {contender.name: contender for contender in self.contenders}
        if name not in by_name:
            raise LookupError(f"no contender {name!r} in this comparison; there are: {', '.join(by_name)}")
        return by_name[name]

    def verdict(self, name: str) -> str:
        """Return FASTER, SLOWER, EQUIVALENT, INCONCLUSIVE or INVALID, for a contender against the baseline.

        Raises:
            LookupError: for the baseline, an unknown name, or a run that timed nothing.
        """
        __tracebackhide__ = True
        return self._comparison(name)["verdict"]

    def ratio(self, name: str) -> Ratio:
        """Return a contender's ratio to the baseline.

        Raises:
            LookupError: for the baseline, an unknown name, or a run that timed nothing.
            AssertionError: for a verdict INVALID, or too few rounds that count.
        """
        __tracebackhide__ = True
        comparison = self._comparison(name)
        if comparison["verdict"] == "INVALID" or comparison["ratio"] is None:
            from compare.report import sentences

            raise AssertionError(sentences.sentence(comparison))
        return Ratio(**{key: comparison["ratio"][key] for key in ("estimate", "low", "high", "confidence")})

    def comparable(self, name: str) -> bool:
        """Return whether a contender's times can be compared with another's."""
        verdicts = {comparison["contender"]: comparison["verdict"] for comparison in self.raw["comparisons"]}
        wanted = verdicts.values() if name == self.baseline else [verdicts.get(name, "INVALID")]
        return any(verdict != "INVALID" for verdict in wanted)

    @property
    def voids(self) -> str:
        """The void rounds with their reasons, in words."""
        return "; ".join(f"round {entry['round']} is void: {entry['reason']}" for entry in self.raw["voided"])

    @property
    def failure(self) -> str | None:
        """The reason why a contender or a claim failed, or None."""
        from compare.execution import build_result
        from compare.report import sentences

        if build_result.contender_failed(self.raw):
            failed = [contender for contender in self.contenders if contender.status != "ok"]
            return "; ".join(
                f"{contender.name} failed ({contender.status}): {contender.reason}" for contender in failed
            )
        if not build_result.claim_failed(self.raw):
            return None
        invalid = [comparison for comparison in self.raw["comparisons"] if comparison["verdict"] == "INVALID"]
        return "; ".join(sentences.sentence(comparison) for comparison in invalid)

    def __repr__(self) -> str:
        verdicts = [f"{comparison['contender']} {comparison['verdict']}" for comparison in self.raw["comparisons"]]
        claims = ", ".join([f"agreement {self.agreement}", *(verdicts or ["nothing timed"])])
        return f"<comparison of {self.raw['spec']['workload']} with {self.baseline}: {claims}>"

    def _comparison(self, name: str) -> Mapping[str, Any]:
        __tracebackhide__ = True
        self.contender(name)
        for comparison in self.raw["comparisons"]:
            if comparison["contender"] == name:
                return comparison
        if not self.raw["comparisons"]:
            raise LookupError(f"nothing was timed, so there is no verdict on {name}; there is `agreement`")
        raise LookupError(f"{name} is the baseline, which the others are compared with")


def _contender(raw: Mapping[str, Any], void: set[int]) -> Contender:
    from compare.results import verdicts

    step = raw["step_seconds"]
    rounds = enumerate(step["samples"]) if step else ()
    memory: Mapping[str, Any] = raw["memory"] or {}
    return Contender(
        name=raw["name"],
        status=raw["status"],
        reason=raw["reason"],
        compile_seconds=raw["compile_seconds"],
        step_seconds=verdicts.step_seconds(raw),
        images_per_second=raw["images_per_second"],
        memory={name: value for name, value in memory.items() if name.endswith("_bytes")},
        blocks=tuple(block for index, blocks in rounds if index not in void for block in blocks),
    )
