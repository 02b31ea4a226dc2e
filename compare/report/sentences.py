"""Words that every report uses: what was trained, each comparison, the certificate. Plain text without markup."""

from collections.abc import Sequence

from compare.agreement.gates import RULES
from compare.results.model import Agreement, Comparison, Environment, Gate, Interval, Result, Spec

DASH = "\N{EN DASH}"
"""Stands for a missing figure."""

_ALL_DIGITS = 17  # enough to tell any two floats apart
_SMALL, _LARGE = 1e-6, 1e6  # beyond these, a number is written with its power of ten


def heading(result: Result) -> str:
    """Return what was trained, on which device and how often."""
    spec = result.spec
    parameters = "" if spec.parameter_count is None else f"{counted(spec.parameter_count, 'parameter')}, "
    rounds = f"{counted(spec.rounds, 'round')}, " if spec.rounds else ""
    batch = f"batch {spec.batch_size}{micro_batches(spec)}{over_devices(result)}"
    allowed = spec.pair.allowed if spec.pair else ()
    accepted = f" (accepted differences: {', '.join(allowed)})" if allowed else ""
    return (
        f"{spec.workload}{accepted} trained on {device(result)} in {spec.precision}: {batch}, "
        f"{counted(spec.epochs, 'epoch')}, {rounds}seed {spec.seed}; "
        f"{parameters}images {'x'.join(map(str, spec.image))}, "
        f"data {spec.data_source}"
    )


def sentence(comparison: Comparison) -> str:
    """Return one comparison in words. INVALID has its reason, and nothing that reads as a speed."""
    verdict, ratio = comparison.verdict, comparison.ratio
    if verdict == "INVALID":
        return f"{claim(comparison)}: INVALID, their times must not be compared: {comparison.reason}"
    if ratio is None:
        return f"{claim(comparison)}: {verdict}, {comparison.reason or 'no ratio was measured'}"
    rounds = counted(comparison.rounds, "round")
    text = f"{claim(comparison)} ({ratio_text(ratio)}, {rounds}): {verdict}"
    if comparison.stopped:
        text += f"; timing stopped after {rounds}, because {comparison.stopped.reason}"
    if verdict == "INCONCLUSIVE" and not comparison.reason and not ratio.low <= 1 <= ratio.high:
        margin = percent(comparison.margin)
        text += f"; the interval excludes 1, but reaches both below and above the margin of {margin}"
    if comparison.detectable is not None:
        text += f"; the smallest difference that {rounds} would show is about {percent(comparison.detectable)}"
    return f"{text}; {comparison.reason}" if comparison.reason else text


def claim(comparison: Comparison) -> str:
    """Return the start of a comparison's sentence: its claim without the figures behind it."""
    baseline, contender, verdict = comparison.baseline, comparison.contender, comparison.verdict
    ratio = comparison.claimed_ratio
    if ratio is None:
        return f"{contender} against {baseline}"
    return {
        "FASTER": f"{contender} is {_factor(1 / ratio.estimate)} times as fast as {baseline}",
        "SLOWER": f"{contender} takes {_factor(ratio.estimate)} times as long as {baseline}",
        "EQUIVALENT": f"{contender} and {baseline} take the same time to within {percent(comparison.margin)}",
        "INCONCLUSIVE": f"{contender} against {baseline} is undecided",
    }[verdict]


def winner(comparison: Comparison) -> str:
    """Return the faster one: a contender's name, `equal`, `undecided`, or `INVALID` if there is no claim."""
    return {
        "FASTER": comparison.contender,
        "SLOWER": comparison.baseline,
        "EQUIVALENT": "equal",
        "INCONCLUSIVE": "undecided",
        "INVALID": "INVALID",
    }[comparison.verdict]


def basis(results: Sequence[Result]) -> str:
    """Return what a caption must state for figures to stand alone: workload, n, interval and hardware."""
    if len(results) == 1:
        return f"Setting: {setting(results[0])}; {replication(results[0])}."
    devices = " or ".join(dict.fromkeys(device(result) for result in results))
    counts = sorted({_counting(result) for result in results if result.spec.rounds})
    if not counts:
        return f"Setting: {devices}; {nothing_timed(results)}."
    count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    confidence = " or ".join(sorted({percent(result.confidence, 6) for result in results}))
    return (
        f"Setting: {devices}; n = {count} rounds of fresh processes in each result, {confidence} intervals by "
        "Student's t over rounds."
    )


def setting(result: Result) -> str:
    """Return what was trained, and on which device."""
    spec = result.spec
    batch = f"batch {spec.batch_size}{batch_details(spec)}{over_devices(result)}"
    return f"{spec.workload} in {spec.precision}, {batch}, on {device(result)}"


def batch_details(spec: Spec) -> str:
    """Return the settings beside the batch size that change a step, empty if they are the usual ones."""
    return micro_batches(spec) + (", deterministic" if spec.deterministic else "")


def micro_batches(spec: Spec) -> str:
    """Return the number of micro-batches in words, empty if batches are not split."""
    return f" in {spec.accumulate} micro-batches" if spec.accumulate > 1 else ""


def over_devices(result: Result, *, names_exceptions: bool = True) -> str:
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


def source(environment: Environment, created: str, result_id: str, how_often: str) -> str:
    """Return which samestep measured a result, when and how often."""
    program = f"samestep {environment.samestep}" if environment.samestep else "samestep"
    return f"Measured by {program} at {created}, {how_often}; result {result_id}."


def nothing_timed(results: Sequence[Result]) -> str:
    """Return why results have no rounds: they were interrupted before the first, or are certificates."""
    is_comparison = any(result.spec.is_comparison for result in results)
    return "no round was completed" if is_comparison else "nothing was timed"


def replication(result: Result) -> str:
    """Return how many rounds count, and which intervals they give."""
    spec, count = result.spec, _counting(result)
    if not spec.rounds:
        return nothing_timed([result])
    void = spec.rounds - count
    left_out = f" ({void} of {counted(spec.rounds, 'round')} void)" if void else ""
    return (
        f"n = {counted(count, 'round')} of fresh processes{left_out}, "
        f"{percent(result.confidence, 6)} intervals by Student's t over rounds"
    )


def gate_value(gate: Gate, digits: int) -> str:
    """Return a gate's value with so many digits, or a dash if it has none.

    A value that would read as its limit gets more digits.
    """
    value, limit = gate.value, gate.limit
    if value is None:
        return DASH
    while value != limit and digits < _ALL_DIGITS and float(f"{value:.{digits}g}") == limit:
        digits += 1
    return f"{value:.{digits}g}"


def agreement_status(agreement: Agreement) -> str:
    """Return the agreement's precision and status, with the reason if there is one."""
    reason = f" ({agreement.reason})" if agreement.reason else ""
    return f"agreement in {agreement.precision}: {agreement.status}{reason}"


def agreement_lines(agreement: Agreement) -> list[str]:
    """Return the certificate in words: its status, a line for each gate, and every pair that failed."""
    lines = [agreement_status(agreement)]
    for gate in agreement.gates:
        worst = f", worst tensor {gate.worst_tensor}" if gate.worst_tensor else ""
        passed = "pass" if gate.passed else "FAIL"
        limit = f"{'lower ' if RULES[gate.name].is_minimum else ''}limit {gate.limit:.3g}"
        lines.append(f"  {gate.name}: {gate_value(gate, 3)} ({limit}), {passed}{worst}")
    for pair in agreement.pairs:
        if pair.kept is not None:
            made = f"made on {pair.kept.created}, key {pair.kept.key[:12]}"
            lines.append(f"  {pair.contender} against {pair.baseline}: kept from an earlier run ({made})")
    failed = [pair for pair in agreement.pairs if pair.status == "fail"]
    for pair in failed:
        mismatch = pair.first_mismatch or "not known"
        lines.append(f"  {pair.contender} against {pair.baseline}: fail, first mismatch {mismatch}")
    if agreement.first_mismatch and not failed:
        lines.append(f"  first mismatch {agreement.first_mismatch}")
    return lines


def percent(fraction: float, digits: int = 3) -> str:
    """Return a fraction in percent: 0.95 is `95 %`."""
    return f"{100 * fraction:.{digits}g} %"


def ratio_text(ratio: Interval) -> str:
    """Return a ratio and its interval in words."""
    estimate, low, high = ratio_figures(ratio)
    return f"ratio {estimate}, {percent(ratio.confidence, 6)} interval {low} to {high}"


def ratio_figures(ratio: Interval) -> tuple[str, str, str]:
    """Return estimate, low and high with enough decimals that none of them rounds to 0 or 1."""
    values = [ratio.estimate, ratio.low, ratio.high]
    near = [value for value in values if value not in (0, 1)]
    decimals = next((count for count in range(3, 6) if not any(round(value, count) in (0, 1) for value in near)), 6)
    estimate, low, high = (
        f"{value:,.{decimals}f}" if value in (0, 1) or _SMALL < value < _LARGE else f"{value:.3g}" for value in values
    )
    return estimate, low, high


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 is `1 round`, 2 is `2 rounds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return text with a question mark for each character that a terminal would act on."""
    return "".join(character if character.isprintable() else "?" for character in text)


def plain(text: str) -> str:
    """Return `printable` text of a result file on one line."""
    return printable(" ".join(text.split()))


def device(result: Result) -> str:
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
