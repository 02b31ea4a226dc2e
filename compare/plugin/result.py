"""A comparison's result, as a test or a caller of `compare.run` gets it."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from compare.results import model


class Ratio(NamedTuple):
    """A contender's time per step over the baseline's, with its interval; below 1 is faster."""

    estimate: float
    low: float
    high: float
    confidence: float


class Requests(NamedTuple):
    """Seconds of requests of one batch size, and their throughput; None stands for a missing figure."""

    p50: float | None
    p90: float | None
    p99: float | None
    images_per_second: float | None


class Contender(NamedTuple):
    """Everything measured of one contender; None stands for a missing figure.

    Attributes:
        name: unique within the comparison; a repeated contender is named `torch#2`.
        status: `ok`, `oom`, `crash`, `timeout` or `refused`, with the `reason`.
        compile_seconds: compile time of the first step, into an empty cache.
        step_seconds: geometric mean of the median blocks of the rounds that count.
        images_per_second: batch size by step time.
        memory: bytes by the names of `compare.machine.memory.DEFINITIONS`.
        blocks: seconds per step of every block of every round that counts, in the order of rounds. With task="infer",
            seconds of every request of the smallest batch size.
        latency: by batch size, figures of requests; empty for training.
    """

    name: str
    status: str
    reason: str | None
    compile_seconds: float | None
    step_seconds: float | None
    images_per_second: float | None
    memory: Mapping[str, int | None]
    blocks: tuple[float, ...]
    latency: Mapping[int, Requests] = {}


class Result:
    """The result of one comparison. `path` is its file, and `raw` the JSON object in it."""

    def __init__(self, result: "model.Result", path: Path) -> None:
        self._result, self.path = result, path

    @cached_property
    def raw(self) -> dict[str, Any]:
        """The whole result as the JSON object of its file (`compare/results/result.schema.json`)."""
        from compare.results import model

        return model.to_json(self._result)

    @property
    def typed(self) -> "model.Result":
        """The result as an object with types."""
        return self._result

    @property
    def baseline(self) -> str:
        """The name of the first contender, which the others are compared with."""
        return self._result.contenders[0].name

    @property
    def agreement(self) -> str:
        """`pass`, `fail` or `skipped`."""
        return self._result.agreement.status

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """All contenders, the baseline first."""
        return tuple(_contender(self._result, contender) for contender in self._result.contenders)

    def contender(self, name: str) -> Contender:
        """Return one contender by name.

        Raises:
            LookupError: for an unknown name, with the known ones.
        """
        __tracebackhide__ = True  # a failure shows the line of the test instead
        contenders = {contender.name: contender for contender in self.contenders}
        if name not in contenders:
            raise LookupError(f"no contender {name!r} in this comparison; there are: {', '.join(contenders)}")
        return contenders[name]

    def verdict(self, name: str, batch_size: int | None = None) -> str:
        """Return FASTER, SLOWER, EQUIVALENT, INCONCLUSIVE or INVALID for a contender against the baseline.

        `batch_size` is that of the requests, if there are several.

        Raises:
            LookupError: for the baseline, for an unknown name or batch size, and if nothing was timed.
        """
        __tracebackhide__ = True
        return self._comparison(name, batch_size).verdict

    def ratio(self, name: str, batch_size: int | None = None) -> Ratio:
        """Return a contender's ratio to the baseline. `batch_size` is that of the requests, if there are several.

        Raises:
            LookupError: for the baseline, for an unknown name or batch size, and if nothing was timed.
            AssertionError: if there is no ratio, because the verdict is INVALID or too few rounds count.
        """
        __tracebackhide__ = True
        comparison = self._comparison(name, batch_size)
        ratio = comparison.claimed_ratio
        if ratio is None:
            from compare.report import sentences

            raise AssertionError(sentences.describe_comparison(comparison))
        return Ratio(ratio.estimate, ratio.low, ratio.high, ratio.confidence)

    def comparable(self, name: str) -> bool:
        """Tell whether a contender's times may be compared with another's."""
        return any(
            comparison.verdict != "INVALID"
            for comparison in self._result.comparisons
            if name in (self.baseline, comparison.contender)
        )

    @property
    def voids(self) -> str:
        """The rounds that count for no contender, and why, in words."""
        from compare.report import telemetry_text

        return "; ".join(telemetry_text.list_void_rounds(self._result.voided))

    @property
    def failure(self) -> str | None:
        """Why a contender or a claim failed, None if neither did."""
        from compare.report import sentences
        from compare.results import verdicts

        result = self._result
        if verdicts.contender_failed(result):
            failed = [contender for contender in result.contenders if contender.status != "ok"]
            return "; ".join(f"{each.name} failed ({each.status}): {each.reason}" for each in failed)
        if not verdicts.claim_failed(result):
            return None
        invalid = [comparison for comparison in result.comparisons if comparison.verdict == "INVALID"]
        return "; ".join(map(sentences.describe_comparison, invalid))

    @property
    def undecided(self) -> str | None:
        """The INCONCLUSIVE comparisons in words, None if there are none."""
        from compare.report import sentences

        undecided = [each for each in self._result.comparisons if each.verdict == "INCONCLUSIVE"]
        return "; ".join(map(sentences.describe_comparison, undecided)) or None

    def __repr__(self) -> str:
        verdicts = [f"{comparison.contender} {comparison.verdict}" for comparison in self._result.comparisons]
        said = ", ".join([f"agreement {self.agreement}", *(verdicts or ["nothing timed"])])
        return f"<comparison of {self._result.spec.workload} with {self.baseline}: {said}>"

    def _repr_html_(self) -> str:
        """Return the result for a notebook: the heading, the certificate and every comparison, as escaped text."""
        from html import escape

        from compare.report import sentences

        result = self._result
        lines = [sentences.make_heading(result), *sentences.describe_agreement(result.agreement)]
        lines += [f"first mismatch: {result.agreement.first_mismatch}"] if result.agreement.first_mismatch else []
        lines += [note for pair in result.agreement.pairs for note in pair.notes]
        lines += map(sentences.describe_comparison, result.comparisons)
        lines.append(f"result file: {self.path}")
        return "".join(f"<div>{escape(sentences.make_plain(line))}</div>" for line in lines)

    def _comparison(self, name: str, batch_size: int | None) -> "model.Comparison":
        __tracebackhide__ = True
        self.contender(name)
        found = {each.batch_size: each for each in self._result.comparisons if each.contender == name}
        if batch_size in found:
            return found[batch_size]
        if len(found) == 1 and batch_size is None:
            return next(iter(found.values()))
        if found:
            sizes = ", ".join(map(str, found))
            raise LookupError(f"no comparison of {name} at batch size {batch_size}; there are: {sizes}")
        if not self._result.comparisons:
            raise LookupError(f"nothing was timed, so there is no verdict on {name}; there is `agreement`")
        raise LookupError(f"{name} is the baseline, which the others are compared with")


def _contender(result: "model.Result", contender: "model.Contender") -> Contender:
    from compare.machine.memory import DEFINITIONS

    memory = contender.memory
    first = next(iter(contender.list_series()), None)
    rounds = enumerate(first.samples if first else (), start=1)
    return Contender(
        name=contender.name,
        status=contender.status,
        reason=contender.reason,
        compile_seconds=contender.compile_seconds,
        step_seconds=contender.step_seconds and contender.step_seconds.estimate,
        images_per_second=contender.images_per_second,
        memory={name: memory.figure(name) for name in DEFINITIONS} if memory else {},
        blocks=tuple(block for number, blocks in rounds if number not in result.void_rounds for block in blocks),
        latency={
            int(size): Requests(each.p50, each.p90, each.p99, each.images_per_second)
            for size, each in (contender.latency or {}).items()
        },
    )
