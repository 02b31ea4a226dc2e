"""Words that every report uses: what was trained, each comparison, the certificate. Plain text without markup."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from compare.agreement.certificate import LIKELY_CAUSE, NOT_KEPT
from compare.agreement.gates import RULES
from compare.base.errors import make_printable
from compare.base.interface import INFER, TRAIN
from compare.base.workloads import ModelSpec
from compare.data import pruning
from compare.results.model import SELF, Agreement, Comparison, Environment, Gate, Interval, Pair, Result, Spec

DASH = "\N{EN DASH}"
"""Stands for a missing figure."""

_DONE = {TRAIN: "trained on", INFER: "answered requests on"}

_TIMES = {TRAIN: "step times", INFER: "request times"}
_WIDEST = 100  # times the lower end of an interval
_ALL_DIGITS = 17  # enough to tell any two floats apart
_SMALL, _LARGE = 1e-6, 1e6  # beyond these, a number is written with its power of ten


def make_heading(result: Result) -> str:
    """Return what was trained, on which device and how often."""
    spec = result.spec
    parameters = "" if spec.parameter_count is None else f"{count_noun(spec.parameter_count, 'parameter')}, "
    rounds = f"{count_noun(spec.rounds, 'round')}, " if spec.rounds else ""
    epochs = f"{count_noun(spec.finetune_epochs or spec.epochs, 'epoch')}, " if spec.task == TRAIN else ""
    allowed = spec.pair.allowed if spec.pair else ()
    accepted = f" (accepted differences: {', '.join(allowed)})" if allowed else ""
    return (
        f"{spec.workload}{accepted} {_DONE[spec.task]} {describe_device(result)} in {spec.precision}: "
        f"{describe_batches(result)}{describe_pruning(spec)}, {_describe_full_training(result)}{epochs}{rounds}"
        f"seed {spec.seed}; "
        f"{parameters}{_describe_inputs(spec)}, "
        f"data {spec.data_source}"
    )


def _describe_full_training(result: Result) -> str:
    """Return how the full model was trained before it was pruned, empty without --finetune-epochs."""
    full = result.full_training
    if full is None:
        return ""
    accuracy = full.training.test_accuracy
    reached = "" if accuracy is None else f" to a test accuracy of {accuracy:.4g}"
    return f"after {count_noun(result.spec.epochs, 'epoch')} of the full model by {full.contender}{reached}, "


def _describe_inputs(spec: Spec) -> str:
    """Return the shapes of a model's inputs in words."""
    inputs = cast("Sequence[Mapping[str, Any]]", spec.model.get("inputs", ()))
    if not inputs:
        return f"images {'x'.join(map(str, spec.image))}"
    shapes = ["x".join(map(str, each["shape"])) or "a number" for each in inputs]
    kinds = ["" if each["below"] is None else f" below {each['below']}" for each in inputs]
    named = [f"{each['name']} {shape}{kind}" for each, shape, kind in zip(inputs, shapes, kinds, strict=True)]
    return f"input{'s' if len(inputs) > 1 else ''} {', '.join(named)}".replace("  ", " ")


def name_work(spec: Spec) -> str:
    """Return the workload, with the task unless it is training, and with the share that pruning removed."""
    work = spec.workload if spec.task == TRAIN else f"{spec.workload} {spec.task}"
    return f"{work}{describe_share(spec)}"


def name_times(results: Sequence[Result]) -> str:
    """Return the plural of what was timed: steps, requests, or both."""
    tasks = {result.spec.task for result in results}
    return " or ".join(name for task, name in _TIMES.items() if task in tasks)


def describe_batches(result: Result) -> str:
    """Return the batch size of training with how it is split, or the batch sizes of requests."""
    spec = result.spec
    if spec.batch_sizes:
        sizes = [f"{size:,}" for size in spec.batch_sizes]
        listed = " and ".join([*filter(None, [", ".join(sizes[:-1])]), sizes[-1]])
        return f"requests of {listed} {'image' if sizes == ['1'] else 'images'}"
    return f"batch {spec.batch_size}{describe_micro_batches(spec)}{describe_devices(result)}"


def describe_comparison(comparison: Comparison) -> str:
    """Return one comparison in words. INVALID has its reason, and nothing that reads as a speed."""
    verdict, ratio = comparison.verdict, comparison.ratio
    if verdict == "INVALID":
        return f"{state_claim(comparison)}: INVALID, their times must not be compared: {comparison.reason}"
    if ratio is None:
        return f"{state_claim(comparison)}: {verdict}, {comparison.reason or 'no ratio was measured'}"
    rounds = count_noun(comparison.rounds, "round")
    text = f"{state_claim(comparison)} ({format_ratio(ratio)}, {rounds}): {verdict}"
    if comparison.stopped:
        text += f"; timing stopped after {rounds}, because {comparison.stopped.reason}"
    if verdict == "INCONCLUSIVE" and not comparison.reason and not ratio.low <= 1 <= ratio.high:
        margin = format_percent(comparison.margin)
        text += f"; the interval excludes 1, but reaches both below and above the margin of {margin}"
    if comparison.detectable is not None and says_something(ratio.low, ratio.high):
        text += f"; the smallest difference that {rounds} would show is about {format_percent(comparison.detectable)}"
    return f"{text}; {comparison.reason}" if comparison.reason else text


def state_claim(comparison: Comparison) -> str:
    """Return the start of a comparison's sentence: its claim without the figures behind it."""
    baseline, contender, verdict = comparison.baseline, comparison.contender, comparison.verdict
    ratio = comparison.claimed_ratio
    size = None if comparison.batch_size is None else f"{comparison.batch_size:,}"
    if ratio is None:
        return f"{contender} against {baseline}" + (f" at batch {size}" if size else "")
    claim = {
        "FASTER": f"{contender} is {_factor(1 / ratio.estimate)} times as fast as {baseline}",
        "SLOWER": f"{contender} takes {_factor(ratio.estimate)} times as long as {baseline}",
        "EQUIVALENT": f"{contender} and {baseline} take the same time to within {format_percent(comparison.margin)}",
        "INCONCLUSIVE": f"{contender} against {baseline} is undecided",
    }[verdict]
    return f"at batch {size}, {claim}" if size else claim


def name_winner(comparison: Comparison) -> str:
    """Return the faster one: a contender's name, `equal`, `undecided`, or `INVALID` if there is no claim."""
    return {
        "FASTER": comparison.contender,
        "SLOWER": comparison.baseline,
        "EQUIVALENT": "equal",
        "INCONCLUSIVE": "undecided",
        "INVALID": "INVALID",
    }[comparison.verdict]


def describe_basis(results: Sequence[Result]) -> str:
    """Return what a caption must state for figures to stand alone: workload, n, interval and hardware."""
    if len(results) == 1:
        return f"Setting: {describe_setting(results[0])}; {describe_replication(results[0])}."
    devices = " or ".join(dict.fromkeys(describe_device(result) for result in results))
    counts = sorted({_counting(result) for result in results if result.spec.rounds})
    if not counts:
        return f"Setting: {devices}; {explain_missing_rounds(results)}."
    count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    confidence = " or ".join(sorted({format_percent(result.confidence, 6) for result in results}))
    return (
        f"Setting: {devices}; n = {count} rounds of fresh processes in each result, {confidence} intervals by "
        "Student's t over rounds."
    )


def describe_setting(result: Result) -> str:
    """Return what was trained, or what answered requests, and on which device."""
    spec = result.spec
    if spec.batch_sizes:
        batch = f"{describe_batches(result)}{describe_pruning(spec)}"
    else:
        batch = f"batch {spec.batch_size}{describe_variant(spec)}{describe_pruning(spec)}{describe_devices(result)}"
    return f"{spec.workload} in {spec.precision}, {batch}, on {describe_device(result)}"


def describe_variant(spec: Spec) -> str:
    """Return the settings beside batch size and pruning that change a step, empty if they are the usual ones."""
    return describe_micro_batches(spec) + (", deterministic" if spec.deterministic else "")


def describe_share(spec: Spec) -> str:
    """Return the share of channels that pruning removed, empty without pruning."""
    return "" if spec.prune is None else f", pruned by {spec.prune:.0%}"


def describe_pruning(spec: Spec) -> str:
    """Return what pruning removed: the share of channels, and operations and parameters before and after."""
    if spec.prune is None:
        return ""
    operations, parameters = (" to ".join(map(_short, counts)) for counts in count_pruned(spec))
    return f"{describe_share(spec)} ({operations} multiplications an image, {parameters} parameters)"


def count_pruned(spec: Spec) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the multiplications of an image before and after pruning, and the parameters before and after."""
    values = dict(spec.model)
    family, pruned = str(values.pop("family")), cast("Mapping[str, Any]", values.pop("pruned"))
    narrow = ModelSpec(family, (spec.image[0], spec.image[1], spec.image[2]), spec.classes, values, pruned=pruned)
    full = pruning.full(narrow)
    return (
        (pruning.count_operations(full), pruning.count_operations(narrow)),
        (pruning.count_parameters(full), pruning.count_parameters(narrow)),
    )


def _short(count: int) -> str:
    return f"{count / 1e6:.3g} M" if count >= 1e6 else f"{count:,}"


def describe_micro_batches(spec: Spec) -> str:
    """Return the number of micro-batches in words, empty if batches are not split."""
    return f" in {spec.accumulate} micro-batches" if spec.accumulate > 1 else ""


def describe_devices(result: Result, *, names_exceptions: bool = True) -> str:
    """Return the number of devices in words, empty for one device.

    `names_exceptions` adds the contenders that trained on one device.
    """
    spec = result.spec
    if spec.devices == 1:
        return ""
    alone = [contender.name for contender in result.contenders if contender.settings.get("devices") == 1]
    but = f" ({', '.join(alone)}: 1 device)" if names_exceptions and alone else ""
    machines = f" of {spec.machines} machines" if spec.machines > 1 else ""
    return f" over {spec.devices} devices{machines}{but}, batch norm {spec.batch_norm}"


def describe_source(environment: Environment, created: str, result_id: str, how_often: str) -> str:
    """Return which samestep measured a result, when and how often."""
    program = f"samestep {environment.samestep}" if environment.samestep else "samestep"
    return f"Measured by {program} at {created}, {how_often}; result {result_id}."


def explain_missing_rounds(results: Sequence[Result]) -> str:
    """Return why results have no rounds: they were interrupted before the first, or are certificates."""
    is_comparison = any(result.spec.is_comparison for result in results)
    return "no round was completed" if is_comparison else "nothing was timed"


def describe_replication(result: Result) -> str:
    """Return how many rounds count, and which intervals they give."""
    spec, count = result.spec, _counting(result)
    if not spec.rounds:
        return explain_missing_rounds([result])
    void = spec.rounds - count
    left_out = f" ({void} of {count_noun(spec.rounds, 'round')} void)" if void else ""
    return (
        f"n = {count_noun(count, 'round')} of fresh processes{left_out}, "
        f"{format_percent(result.confidence, 6)} intervals by Student's t over rounds"
    )


def format_gate_value(gate: Gate, digits: int) -> str:
    """Return a gate's value with so many digits, or a dash if it has none.

    A value that would read as its limit gets more digits.
    """
    value, limit = gate.value, gate.limit
    if value is None:
        return DASH
    while value != limit and digits < _ALL_DIGITS and float(f"{value:.{digits}g}") == limit:
        digits += 1
    return f"{value:.{digits}g}"


def describe_status(agreement: Agreement) -> str:
    """Return the agreement's precision and status, with the reason if there is one."""
    reason = f" ({agreement.reason})" if agreement.reason else ""
    scope = ", within one framework and against its own float64 run" if agreement.kind == SELF else ""
    return f"agreement in {agreement.precision}: {agreement.status}{reason}{scope}"


def describe_agreement(agreement: Agreement) -> list[str]:
    """Return the certificate in words: its status, a line for each gate, and every pair that failed."""
    lines = [describe_status(agreement)]
    for gate in agreement.gates:
        worst = f", worst tensor {gate.worst_tensor}" if gate.worst_tensor else ""
        passed = "pass" if gate.passed else "FAIL"
        limit = f"{'lower ' if RULES[gate.name].is_minimum else ''}limit {gate.limit:.3g}"
        lines.append(f"  {gate.name}: {format_gate_value(gate, 3)} ({limit}), {passed}{worst}")
    for pair in agreement.pairs:
        if pair.kept is not None:
            made = f"made on {pair.kept.created}, key {pair.kept.key[:12]}"
            lines.append(f"  {pair.contender} against {pair.baseline}: kept from an earlier run ({made})")
        lines += [f"  {note}" for note in pair.notes if note.startswith(NOT_KEPT)]
    failed = [pair for pair in agreement.pairs if pair.status == "fail"]
    for pair in failed:
        mismatch = _name_mismatch(pair) or "not known"
        lines.append(f"  {pair.contender} against {pair.baseline}: fail, first mismatch {mismatch}")
        lines += [f"    {line}" for line in list_repairs(pair)]
    if agreement.first_mismatch and not failed:
        lines.append(f"  first mismatch {agreement.first_mismatch}")
    return lines


def explain_mismatch(pair: Pair) -> list[str]:
    """Return what failed first, its likely cause and the repairs, empty if nothing failed."""
    mismatch = _name_mismatch(pair)
    return [*([f"first mismatch: {mismatch}"] if mismatch else []), *list_repairs(pair)]


def _name_mismatch(pair: Pair) -> str | None:
    """Return what failed first, with its likely cause unless a repair names it too."""
    mismatch, _, cause = (pair.first_mismatch or "").partition(LIKELY_CAUSE)
    is_told = bool(cause) and any(cause in repair for repair in pair.repairs)
    return mismatch if is_told else pair.first_mismatch


def list_repairs(pair: Pair) -> list[str]:
    """Return a heading and a line for each repair, empty without any."""
    if not pair.repairs:
        return []
    return [
        f"{count_noun(len(pair.repairs), 'difference')} to repair:",
        *(f"  {number}. {repair}" for number, repair in enumerate(pair.repairs, start=1)),
    ]


def format_percent(fraction: float, digits: int = 3) -> str:
    """Return a fraction in percent: 0.95 is `95 %`."""
    return f"{100 * fraction:.{digits}g} %"


def says_something(low: float, high: float) -> bool:
    """Tell whether an interval limits anything. Two noisy rounds have one over many orders of magnitude."""
    return high <= _WIDEST * low


def format_ratio(ratio: Interval) -> str:
    """Return a ratio and its interval in words."""
    if ratio.low <= 1 <= ratio.high and not says_something(ratio.low, ratio.high):
        return f"ratio {ratio.estimate:.3g}, too few rounds for an interval"
    estimate, low, high = format_ratio_figures(ratio)
    return f"ratio {estimate}, {format_percent(ratio.confidence, 6)} interval {low} to {high}"


def format_ratio_figures(ratio: Interval) -> tuple[str, str, str]:
    """Return estimate, low and high with enough decimals that none of them rounds to 0 or 1."""
    values = [ratio.estimate, ratio.low, ratio.high]
    near = [value for value in values if value not in (0, 1)]
    decimals = next((count for count in range(3, 6) if not any(round(value, count) in (0, 1) for value in near)), 6)
    estimate, low, high = (
        f"{value:,.{decimals}f}" if value in (0, 1) or _SMALL < value < _LARGE else f"{value:.3g}" for value in values
    )
    return estimate, low, high


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun: 1 is `1 round`, 2 is `2 rounds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def make_plain(text: str) -> str:
    """Return `printable` text of a result file on one line."""
    return make_printable(" ".join(text.split()))


def describe_device(result: Result) -> str:
    """Return the device that contenders trained on, with its own name if that was recorded."""
    return name_device(result.spec.device, result.environment)


def name_device(kind: str, environment: Environment) -> str:
    """Return `cpu` or `cuda`, with the device's own name if the environment has it."""
    name = environment.device_name(kind)
    return f"{kind} ({name})" if name else kind


def _counting(result: Result) -> int:
    """Return how many rounds count."""
    return result.spec.rounds - len(result.void_rounds)


def _factor(value: float) -> str:
    if value >= _LARGE:
        return f"{value:.3g}"
    decimals = next((count for count in range(2, 6) if round(value, count) != 1), 6)
    return f"{value:,.{decimals}f}"
