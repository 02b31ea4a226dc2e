"""Write the reference pages that the code itself decides.

python -m docs.generate FOLDER
"""

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compare import results
from compare.agreement.gates import RULES
from compare.base import workloads
from compare.base.compiler_flags import list_words
from compare.base.interface import INFER, TRAIN, Refused
from compare.base.knobs import KNOBS, PARALLEL, REMOVED
from compare.base.precisions import PRECISIONS
from compare.base.workloads import WITH_BATCH_NORM, WORKLOADS, Workload
from compare.cli.app import make_reference
from compare.cli.help import CommandPage
from compare.settings import options, tunings
from compare.settings.tunings import GIVEN, SYNCHRONISED, TUNED, TUNINGS

BACKENDS = ("jax", "torch")
DEVICES = ("cpu", "cuda")
YES, NO = "yes", "no"
MEANINGS = {
    "spec": "the settings of the run",
    "spec.workload": "what was trained",
    "spec.contenders": "names, the baseline first",
    "spec.rounds": "complete rounds",
    "spec.machines": "machines that shared each batch",
    "spec.classes": "outputs of the model",
    "spec.parameter_count": "parameters of the model",
    "spec.data_sha256": "hash of the data set, as all contenders read it",
    "spec.weights_sha256": "hash of the initial weights",
    "spec.design_reason": "why another design was used than the asked one",
    "agreement.pairs[].notes": "differences that are explained and allowed",
    "agreement.pairs[].repairs": "differences of your models that fail the certificate, each with its cure",
    "agreement.pairs[].tensors": "each tensor's errors",
    "agreement.pairs[].tensors[].e64": "relative difference of the sides in float64",
    "agreement.pairs[].tensors[].e32": "the same in float32",
    "agreement.pairs[].tensors[].noise": "rounding noise at the timed precision",
    "agreement.pairs[].tensors[].baseline_error": "error against its own float64 run",
    "contenders[].steady": "whether step times became steady",
    "telemetry.foreign_cores": "cores that other programs used, by round",
    "telemetry.samples.foreign": "processes of others on the GPU",
    "id": "random name of the run",
    "command": "the words of the command line",
    "environment": "packages, devices, driver, variables and git commit",
    "voided[].round": "the first round is 1",
    "voided[].reason": "what disturbed the round",
    "contenders[].name": "BACKEND:TUNING",
    "contenders[].status": "ok, or how it failed",
    "contenders[].reason": "why it failed",
    "contenders[].settings": "effective settings, read back from the framework",
    "contenders[].versions": "versions of the framework's packages",
    "contenders[].compile_seconds": "first step less a later one, from an empty cache",
    "contenders[].compile_measured": "date of the run that measured it, null for this one",
    "contenders[].compile_reason": "why there is none",
    "contenders[].program_kept": "key and date of programs that an earlier run has compiled, null for new ones",
    "contenders[].cached_compile_seconds": "the same with a filled cache",
    "contenders[].first_step_seconds": "the call that compiles",
    "contenders[].warmup_seconds": "until step times were steady",
    "contenders[].images_per_second": "batch size over step time",
    "contenders[].step_seconds.estimate": "geometric mean over rounds of the median blocks",
    "contenders[].step_seconds.interval": "Student's t interval of the estimate",
    "contenders[].step_seconds.samples": "seconds per step, [rounds][blocks]",
    "contenders[].step_seconds.steps_per_block": "steps between two clock readings",
    "contenders[].training.loss": "loss of every step",
    "contenders[].backend": "torch, jax, or an added backend",
    "contenders[].memory": "bytes, by four definitions",
    "contenders[].memory.absent": "why a figure is missing",
    "contenders[].energy.joules_per_step": "from the GPU's own counter",
    "contenders[].unproven": "why the timed work was not proved",
    "comparisons[].baseline": "the first contender",
    "comparisons[].ratio": "contender's step time over the baseline's",
    "comparisons[].verdict": "what the interval says",
    "comparisons[].reason": "why the verdict is no claim",
    "comparisons[].rounds": "rounds that count",
    "comparisons[].detectable": "smallest relative difference that the rounds would show",
    "comparisons[].outliers": "rounds far from the others, which still count",
    "agreement.status": "pass, fail or skipped",
    "agreement.gates": "the worst outcome of each gate",
    "agreement.pairs": "one certificate for each contender against the baseline",
    "agreement.first_mismatch": "the first tensor that differs, in execution order",
    "agreement.accuracies": "test accuracies over seeds, of `agree`",
    "agreement.trajectory": "losses and envelopes of whole training runs, of `agree`",
    "telemetry.samples": "what NVML told, every 0.1 s",
}
"""Meanings of keys that neither the schema nor an option describes."""

# Knobs that others need. The support matrix looks for the fewest of them with which a knob is accepted.
_BASES = ("compile", "graph-capture", "fused-optimizer")


def main() -> None:
    write_pages(Path(sys.argv[1]))


def write_pages(folder: Path) -> None:
    """Write every generated page, unless it already has the same text."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def pages() -> Mapping[str, str]:
    """Return the text of each generated page by name."""
    return {
        "commands": commands(),
        "options": option_page(),
        "knobs": knobs(),
        "workloads": workload_page(),
        "precisions": precisions(),
        "gates": gates(),
        "support": support(),
        "result-keys": result_keys(),
    }


def commands() -> str:
    """Return each command with its arguments and options, as its help page has them."""
    parts = [
        "# Commands\n",
        "`samestep COMMAND --help` prints the same, with the most used options first.",
        "[Options](options.md) has their names in Python.\n",
    ]
    for page in make_reference():
        parts += [f"## samestep {page.name}\n", f"{page.text}\n", *option_tables(page)]
    return "\n".join(parts)


def option_tables(page: CommandPage) -> Iterable[str]:
    """Yield a table for each group of a command's rows."""
    for group, rows in itertools.groupby(page.rows, key=lambda row: row.group or "Arguments"):
        cells = [[f"`{row.term}`", row.text, row.default, f"`{row.example}`" if row.example else ""] for row in rows]
        yield table((group, "meaning", "default", "example"), cells)


def option_page() -> str:
    """Return every option with its names on the command line and in Python."""
    rows = [
        [
            f"`{option.flag}`" if option.flag else "",
            f"`{option.name}{'=False' if option.turns_off else ''}`" if option.in_python else "",
            option.help_in("compare"),
            option.default_words,
            option.unit,
            ", ".join(option.commands),
        ]
        for option in options.SETTINGS.values()
        if option.commands
    ]
    return "\n".join(
        (
            "# Options\n",
            "One definition gives each option its flag, its name in Python and in the pytest marker, and its check.\n",
            table(("flag", "in Python", "meaning", "default", "unit", "commands"), rows),
        )
    )


def knobs() -> str:
    """Return the knobs and the tunings made of them."""
    rows = [
        [f"`{knob.name}`", knob.summary, *(knob.describe(backend) for backend in BACKENDS)] for knob in KNOBS.values()
    ]
    parts = [
        "# Knobs and tunings\n",
        "A knob is one optimisation switch. A contender's tuning is a set of knobs. Write",
        "`BACKEND:TUNING+KNOB=VALUE`, as in `jax:compiled+steps-per-dispatch=10`. `KNOB` alone",
        "switches a knob on, and `KNOB=off` switches it off.",
        "[Support](support.md) says which knobs need or exclude others.\n",
        table(("knob", "what it does", "JAX", "PyTorch"), rows),
        "## Tunings\n",
        table(("tuning", "meaning"), ([f"`{name}`", meaning] for name, meaning in TUNINGS.items())),
        "### stock and compiled\n",
        table(("contender", "knobs"), ([f"`{b}:{name}`", listed(values)] for (b, name), values in GIVEN.items())),
        "### tuned\n",
        "The last column names the evidence in the repository. On a CPU `tuned` is a guess.\n",
        table(
            ("contender", "device", "workload", "knobs", "measured in"),
            (
                [f"`{backend}:tuned`", device, workload, listed(values), evidence_cell(evidence)]
                for (backend, device, workload), (values, evidence) in TUNED.items()
            ),
        ),
        "Over several devices with `--batch-norm sync`, `tuned` has these knobs besides:\n",
        table(
            ("contender", "device", "workload", "knobs", "measured in"),
            (
                [f"`{backend}:tuned`", device, workload, listed(values), evidence_cell(evidence)]
                for (backend, device, workload), (values, evidence) in SYNCHRONISED.items()
            ),
        ),
    ]
    return "\n".join(parts)


def listed(values: Mapping[str, Any]) -> str:
    names = [f"`{name}`" if value is True else f"`{name}={value}`" for name, value in values.items()]
    return ", ".join(names) or "none"


def evidence_cell(evidence: str | None) -> str:
    return f"`{evidence}`" if evidence else "not measured"


def workload_page() -> str:
    """Return the workloads with their defaults."""
    rows = [
        [
            f"`{workload.name}`",
            workload.summary,
            "x".join(map(str, workload.model.image)),
            str(workload.model.classes),
            str(workload.batch_size),
            str(workload.epochs),
            optimizer(workload),
        ]
        for workload in WORKLOADS.values()
    ]
    return "\n".join(
        (
            "# Workloads\n",
            "A workload is a model, its data, its loss and its optimizer. `--workload NAME` chooses one.",
            "All train without dropout and without stochastic depth, because two frameworks cannot",
            "draw the same random masks.\n",
            table(("workload", "what it is", "image", "classes", "batch", "epochs", "optimizer"), rows),
        )
    )


def optimizer(workload: Workload) -> str:
    rule = workload.optimizer
    name = "adamw" if rule.decoupled else rule.name
    parts = [f"{name} {rule.learning_rate:g}"]
    parts += [f"momentum {rule.momentum:g}"] if rule.momentum else []
    parts += [f"decay {rule.weight_decay:g}"] if rule.weight_decay else []
    parts += [f"clip {rule.clip_norm:g}"] if rule.clip_norm else []
    parts += [rule.schedule.name] if rule.schedule.name != "constant" else []
    return ", ".join(parts)


def precisions() -> str:
    """Return the facts about each precision."""
    rows = [
        [
            f"`{precision.name}`",
            precision.storage_dtype,
            precision.compute_dtype,
            f"{precision.roundoff:.1e}",
            "yes" if precision.has_loss_scale else "no",
            precision.required_device or "any",
        ]
        for precision in PRECISIONS.values()
    ]
    return "\n".join(
        (
            "# Precisions\n",
            "`--precision NAME` chooses one. Parameters, batch-norm statistics and the loss have the storage dtype.",
            "Convolutions and dense layers have the compute dtype. In `float32`, TF32 is off on both sides.",
            "In `float16`, both sides scale the loss by the rule of torch's GradScaler.\n",
            table(("precision", "stored", "computed", "unit roundoff", "loss scale", "device"), rows),
        )
    )


def gates() -> str:
    """Return the gates of a certificate with their limits."""
    rows = [
        [f"`{rule.name}`", rule.question, f"{'at least' if rule.is_minimum else 'at most'} {rule.limit:g}"]
        for rule in RULES.values()
    ]
    return "\n".join(
        (
            "# Gates\n",
            "A certificate passes if the value of every gate keeps its limit.",
            "`compare` judges no whole training runs, and `agree` judges no updates at the timed",
            "batch. `determinism` needs `--deterministic`.",
            "[How a certificate works](../explanation/certificate.md) explains each gate.\n",
            table(("gate", "value", "limit"), rows),
        )
    )


def support() -> str:
    """Return which combinations are accepted, and the reasons of the code that refuses the others."""
    parts = [
        "# Support\n",
        "This page asks the code that refuses. A refused combination ends with exit code 2 and the reason below.\n",
        "## Precisions by device\n",
        table(
            ("precision", *DEVICES),
            (
                [f"`{name}`", *(YES if precision.runs_on(device) else NO for device in DEVICES)]
                for name, precision in PRECISIONS.items()
            ),
        ),
        "## Workloads\n",
        "Every workload trains in every precision on both backends. These knobs depend on the model:\n",
        table(
            ("workload", "`rematerialisation`", "`overlap-exchanges`"),
            (workload_support(w) for w in WORKLOADS.values()),
        ),
        "## Knobs by backend and device\n",
        "Each cell says with which other knobs the knob is accepted, or why it is refused.\n",
        table(
            ("knob", *(f"{backend}, {device}" for backend in BACKENDS for device in DEVICES)),
            (
                [f"`{name}`", *(knob_support(backend, device, name) for backend in BACKENDS for device in DEVICES)]
                for name in KNOBS
                if name != "parallel"
            ),
        ),
        "## Knobs that exclude each other\n",
        table(("backend", "device", "knobs", "reason"), exclusions()),
        "## Removed knobs\n",
        table(("knob", "use instead"), ([f"`{name}`", instead] for name, instead in REMOVED.items())),
        "## Backends that packages add\n",
        "An [added backend](../howto/own-backend.md) has no knobs.",
        "It refuses the workloads and precisions that it lacks.\n",
        "## Several devices\n",
        table(("backend", "ways"), ([name, ", ".join(f"`{way}`" for way in PARALLEL[name])] for name in BACKENDS)),
    ]
    return "\n".join(parts)


def workload_support(workload: Workload) -> Sequence[str]:
    try:
        workloads.list_blocks(workload.model)
        blocks = YES
    except Refused as refusal:
        blocks = f"{NO}: {reason_of(refusal)}"
    has_batch_norm = workload.model.family in WITH_BATCH_NORM
    return [f"`{workload.name}`", blocks, YES if has_batch_norm else "without effect: the model has no batch norm"]


def knob_support(backend: str, device: str, name: str) -> str:
    """Return with which knobs a knob is accepted, or the reason of the refusal."""
    if not KNOBS[name].is_switch(backend):
        return KNOBS[name].describe(backend)
    if name == "compiler-flags":
        return ", ".join(f"`{word}`" for word in list_words(backend, device)[1:])
    bases = accepted_with(backend, device, name)
    if bases is None:
        return f"{NO}: {refusal(backend, device, ['compile', item(name)])}"
    conditions = [*bases] if TRAIN in KNOBS[name].tasks else ["--task infer", *bases]
    return f"with {', '.join(f'`{condition}`' for condition in conditions)}" if conditions else YES


def accepted_with(backend: str, device: str, name: str) -> Sequence[str] | None:
    """Return the fewest other knobs with which a knob is accepted. None means that there are none."""
    others = [base for base in (*_BASES, *PARALLEL[backend]) if base != name]
    for count in range(len(others) + 1):
        for bases in itertools.combinations(others, count):
            if sum(base in PARALLEL[backend] for base in bases) > 1:
                continue
            if refusal(backend, device, [*bases, item(name)]) is None:
                return bases
    return None


def exclusions() -> Iterable[Sequence[str]]:
    """Yield each pair of knobs that are accepted alone and refused together, with the devices where that is so."""
    devices: dict[tuple[str, str, str], list[str]] = {}
    for backend, device in itertools.product(BACKENDS, DEVICES):
        switches = [name for name in KNOBS if KNOBS[name].is_switch(backend) and name != "parallel"]
        needs = {name: accepted_with(backend, device, name) for name in (*switches, *PARALLEL[backend])}
        for first, second in itertools.combinations(needs, 2):
            reason = exclusion(backend, device, needs, first, second)
            if reason is not None:
                devices.setdefault((backend, f"`{item(first)}`, `{item(second)}`", reason), []).append(device)
    for (backend, pair, reason), where in devices.items():
        yield [backend, ", ".join(where), pair, reason]


def exclusion(
    backend: str, device: str, needs: Mapping[str, Sequence[str] | None], first: str, second: str
) -> str | None:
    """Return why two knobs exclude each other. None if they do not, or if a third knob decides."""
    one, other = needs[first], needs[second]
    if one is None or other is None:
        return None
    bases = {*one, *other} - {first, second}
    if sum(name in PARALLEL[backend] for name in (*bases, first, second)) > 1:
        return None
    reason = refusal(backend, device, [*sorted(bases), item(first), item(second)])
    if reason is None or " needs " in reason or " is for " in reason or not {first, second} & words(reason):
        return None
    return reason


def words(text: str) -> set[str]:
    """Return the words of a reason, as knobs are written."""
    return set(text.replace(",", " ").replace(":", " ").split()) | {text.partition("=")[0].rpartition(" ")[2]}


def item(name: str) -> str:
    """Return a knob as a user writes it, with a value that is not its default."""
    return {"steps-per-dispatch": "steps-per-dispatch=8", "input": "input=stream"}.get(name, name)


def refusal(backend: str, device: str, items: Sequence[str]) -> str | None:
    """Return why a tuning is refused. None means that it is accepted."""
    task = INFER if any(TRAIN not in KNOBS[name].tasks for name in items if name in KNOBS) else TRAIN
    try:
        tuning = "+".join(["stock", *dict.fromkeys(items)])
        tunings.resolve(backend, tuning, device, "resnet50", "float32", task=task)
    except Refused as error:
        return reason_of(error)
    return None


def reason_of(error: Refused) -> str:
    return str(error).partition(": ")[2] or str(error)


def result_keys() -> str:
    """Return the keys of a result file, from its schema."""
    schema = json.loads((Path(results.__file__).parent / "result.schema.json").read_text())
    rows = list(key_rows(schema, schema, ""))
    return "\n".join(
        (
            "# Result keys\n",
            "`result.json` is one JSON object. Its schema is `compare/results/result.schema.json`.",
            "`[]` stands for each element of a list, and `*` for any name. A figure that was not",
            "measured is null, and a reason stands beside it.\n",
            table(("key", "type", "meaning"), rows),
        )
    )


def key_rows(schema: Mapping[str, Any], node: Mapping[str, Any], path: str) -> Iterable[Sequence[str]]:
    node = resolved(schema, node)
    for name, child in node.get("properties", {}).items():
        child_node = resolved(schema, child)
        place = f"{path}.{name}" if path else name
        if place.startswith("telemetry.others[].samples."):  # the same keys as telemetry.samples
            continue
        meaning = MEANINGS.get(place) or child.get("description") or option_help(place) or child_node.get("description")
        yield [f"`{place}`", type_of(schema, child_node), str(meaning or "")]
        if path.count(".") < 3:
            yield from key_rows(schema, child_node, place)
    if isinstance(node.get("items"), dict):
        yield from key_rows(schema, node["items"], f"{path}[]")
    for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from key_rows(schema, alternative, path)


def resolved(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = node.get("$ref")
    return schema["definitions"][reference.rpartition("/")[2]] if reference else node


def option_help(place: str) -> str:
    """Return the help of the option that a key of `spec` repeats; "" if there is none."""
    for option in options.SETTINGS.values():
        if place == f"spec.{option.spec_key}":
            return f"false with `{option.flag}`" if option.turns_off else option.help_in("compare")
    return ""


def type_of(schema: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(json.dumps(value) for value in node["enum"])
    types = node.get("type", "")
    alternatives = [resolved(schema, alternative) for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ()))]
    names = types if isinstance(types, list) else [types, *(type_of(schema, each) for each in alternatives)]
    return " or ".join(dict.fromkeys(str(name) for name in names if name))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n" for cells in lines)


if __name__ == "__main__":
    main()
