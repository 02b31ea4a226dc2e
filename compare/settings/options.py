"""Every option of a comparison, defined once: name, type, default, unit, help, check and group.

The command line, `compare.run(...)`, the pytest marker, `samestep reproduce` and the result's `spec` derive from the
fields here. To add an option, add a field and read it where it is used: a plan has every field of `RunSettings`.

pytest loads this file at every start, so all heavy imports wait until a value is checked.
"""

# ruff: noqa: RUF009 -- `_option` returns a field, which is what a dataclass takes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.settings.kinds import (
    Choice,
    Choices,
    Fraction,
    Instance,
    Kind,
    Number,
    PathOf,
    Share,
    Switch,
    Text,
    Texts,
    Whole,
    Wholes,
)

if TYPE_CHECKING:
    from compare.base.workloads import Workload
    from compare.settings.pair_spec import Request

WHAT, HOW, OWN_MODELS, SEVERAL_DEVICES, OUTPUT = GROUPS = (
    "What to compare",
    "How to measure",
    "Your own models",
    "Several devices",
    "Output",
)
"""The groups of a command's help, in order."""

DESIGNS: Mapping[str, str] = {
    "alternating": "all contenders of a round are alive together, and their blocks alternate",
    "turns": "one contender after the other in each round",
    "sequential": "all rounds of one contender, then all of the next: shows what a bad design does, and is INVALID",
}

DEFAULT_CONTENDERS = ("torch", "jax")
UNDECIDED = ("pass", "fail", "skip")
"""What an INCONCLUSIVE verdict does to a command or a test."""

_COMPARE, _AGREE, _FIT, _SCALE, _REPRODUCE = "compare", "agree", "fit", "scale", "reproduce"
_CAMPAIGN = "campaign"
EXPLAIN = "explain"
TUNE = "tune"
_TUNED = (
    *("contenders", "workload", "precision", "device", "batch_size", "seed", "data", "images", "prune", "round_to"),
    *("prune_by", "task", "batch_sizes", "deadline", "void_limit", "store", "out", "as_json", "jax", "torch", "image"),
    "classes",
    *("model_args", "optimizer", "loss", "weights_map", "weights_from", "allow"),
)
LADDER = "ladder"
_CLIMBED = (
    *(name for name in _TUNED if name not in ("task", "batch_sizes")),
    *("margin", "unequal", "rounds", "epochs", "finetune_epochs", "deterministic", "cold_compile"),
)
_NOT_EXPLAINED = (
    "explain",
    "devices",
    "parallel",
    "batch_norm",
    "energy",
    "cold_compile",
    "quick",
    "paper",
    "task",
    "batch_sizes",
)
_TRAINING = (_COMPARE, _AGREE, _SCALE)
_ALL = (*_TRAINING, _FIT)
_DIFF = "diff"
_PAIR = (_COMPARE, _AGREE, "map", _DIFF)


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: its name in Python.
        kind: the values that it takes, and their check.
        default: its value if nobody gives one. None stands for `default_text`.
        help: one or two sentences.
        group: one of `GROUPS`.
        commands: the commands that take it; empty if only samestep itself sets it.
        flag: its name on the command line; "" if it has none there.
        turns_off: whether the flag turns the option off, as --skip-energy does.
        metavar: stands for its value in the help.
        unit: the unit of its value, such as `seconds`.
        default_text: the default in words.
        example: how a user writes it.
        rank: its place among the most used options, from 1; 0 for all others.
        is_hidden: whether help and docs leave it out, because it is accepted but does nothing any more.
        in_python: whether `compare.run`, `compare.certify` and the pytest marker take it too.
        sets: settings that the flag stands for.
        spec_key: its key in the result's `spec`; None if `spec` does not have it.
        schema: the JSON schema of that key; None for the schema of `kind`.
        pytest_help: begins the help of `pytest --samestep-NAME`; "" if pytest has no such option.
        helps: other help texts, by command.
        defaults: other defaults in words, by command.
        examples: other examples, by command.
    """

    kind: Kind
    default: Any
    help: str
    group: str
    commands: tuple[str, ...]
    flag: str
    turns_off: bool = False
    metavar: str = ""
    unit: str = ""
    default_text: str = ""
    example: str = ""
    rank: int = 0
    is_hidden: bool = False
    in_python: bool = True
    sets: Mapping[str, Any] = field(default_factory=dict[str, Any])
    spec_key: str | None = None
    schema: Mapping[str, Any] | None = None
    pytest_help: str = ""
    helps: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, str] = field(default_factory=dict[str, str])
    examples: Mapping[str, str] = field(default_factory=dict[str, str])
    name: str = ""

    def check(self, value: object, write_truth: Callable[[bool], str] = str) -> None:
        """Check a value. Messages have True and False as `write_truth` gives them.

        Raises:
            Refused: the value is not allowed.
        """
        name = self.flag if self.flag and not isinstance(self.kind, Switch) else self.name
        self.kind.check(name, value, write_truth)

    def help_in(self, command: str) -> str:
        """Return the help text in a command, with the values of a choice in place of {choices}."""
        return self.helps.get(command, self.help).replace("{choices}", self.kind.allowed)

    def default_in(self, command: str) -> str:
        """Return the default in a command, in words. To repeat a stored result, its `spec` gives the defaults."""
        if command == _REPRODUCE and self.spec_key:
            return ""
        return self.defaults.get(command, self.default_words)

    @property
    def default_words(self) -> str:
        """The default in words, or "" for a switch and for no default."""
        if self.default_text or self.default is None or isinstance(self.default, bool | tuple):
            return self.default_text
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def _option(
    default: Any,
    kind: Kind,
    help: str,
    *,
    group: str = HOW,
    commands: tuple[str, ...] = (),
    flag: str | None = None,
    **more: Any,
) -> Any:
    """Define a field. Its flag is its name by default. An option that no command takes has no flag."""
    definition = Option(
        kind=kind,
        default=default,
        help=help,
        group=group,
        commands=commands,
        flag="auto" if flag is None else flag,
        **more,
    )
    return field(default=default, metadata={"option": definition})


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings that a plan has as a user gave them."""

    precision: str = _option(
        "float32",
        Choice(lambda: _precisions()),
        "{choices}.",
        group=WHAT,
        commands=(*_ALL, _DIFF),
        metavar="NAME",
        rank=5,
        example="--precision bfloat16",
        spec_key="precision",
        pytest_help="Precision",
    )
    task: str = _option(
        "train",
        Choice(lambda: _interface().TASKS),
        "train (steps) or infer (requests).",
        group=WHAT,
        commands=(_COMPARE, _FIT, _SCALE),
        metavar="NAME",
        spec_key="task",
        helps={_FIT: "Only train.", _SCALE: "Only train."},
    )
    batch_sizes: "Sequence[int] | str | None" = _option(
        None,
        Wholes(),
        "With infer: images per request.",
        group=WHAT,
        commands=(_COMPARE,),
        metavar="N,N,...",
        unit="images",
        default_text="1,32",
        spec_key="batch_sizes",
        schema={"type": ["array", "null"], "minItems": 1, "items": {"type": "integer", "minimum": 1}},
    )
    device: str = _option(
        "auto",
        Choice(lambda: _interface().DEVICES),
        "auto, cpu or cuda. auto is cuda if there is a GPU.",
        group=WHAT,
        commands=(*_ALL, "selftest", _DIFF),
        metavar="NAME",
        rank=6,
        example="--device cpu",
        spec_key="device",
        schema={"enum": ["cpu", "cuda"]},
        pytest_help="auto, cpu or cuda,",
    )
    seed: int = _option(
        0,
        Whole(0),
        "Fixes weights, data split and order.",
        group=WHAT,
        commands=_ALL,
        metavar="N",
        spec_key="seed",
    )
    data: str | Path | None = _option(
        None,
        PathOf("a folder's path"),
        "Folder of the data set, or of photographs by class.",
        group=WHAT,
        commands=(*_TRAINING, _REPRODUCE),
        metavar="DIR",
        rank=9,
        example="--data ~/mnist",
        spec_key="data_folder",
        schema={"type": ["string", "null"]},
        helps={_REPRODUCE: "Folder of the data set here, instead of the stored folder."},
    )
    images: int | None = _option(
        None,
        Whole(1),
        "Photographs of the folder to train on.",
        group=WHAT,
        commands=_TRAINING,
        metavar="N",
        unit="images",
        default_text="all",
        spec_key="images",
        schema={"type": ["integer", "null"], "minimum": 1},
    )
    prune: float | None = _option(
        None,
        Share("above 0 and below 1 (0.5 or 50% removes half of the channels)"),
        "Remove this share of the channels on both sides.",
        group=WHAT,
        commands=(_COMPARE, _AGREE),
        metavar="RATIO",
        spec_key="prune",
        helps={LADDER: "Share of the channels that the last rung removes."},
        defaults={LADDER: "0.5"},
        schema={"type": ["number", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    )
    round_to: int = _option(
        8,
        Whole(1),
        "With --prune: multiple for widths.",
        group=WHAT,
        commands=(_COMPARE, _AGREE),
        metavar="N",
        unit="channels",
        spec_key="round_to",
    )
    prune_by: str = _option(
        "kernels",
        Choice(lambda: _pruning_scores()),
        "With --prune: {choices}. The largest stay.",
        group=WHAT,
        commands=(_COMPARE, _AGREE),
        metavar="SCORE",
        spec_key="prune_by",
    )
    finetune_epochs: int | None = _option(
        None,
        Whole(1),
        "With --prune: train before it, and N epochs after.",
        group=WHAT,
        commands=(_COMPARE,),
        metavar="N",
        unit="epochs",
        spec_key="finetune_epochs",
        schema={"type": ["integer", "null"], "minimum": 1},
    )
    accumulate: int = _option(
        1,
        Whole(1),
        "Split each batch into N micro-batches.",
        group=WHAT,
        commands=(_COMPARE, _AGREE),
        metavar="N",
        unit="micro-batches",
        spec_key="accumulate",
    )
    margin: float = _option(
        0.01,
        Share("above 0 and below 1 (0.01 is 1%)"),
        "Least relative difference to count.",
        commands=(_COMPARE,),
        metavar="X",
        spec_key="margin",
    )
    fail_above: float | str | None = _option(
        None,
        Fraction(),
        "Fail above this slowdown, or this growth of memory.",
        group=OUTPUT,
        commands=(_DIFF,),
        metavar="3%|0.03",
        spec_key="fail_above",
        schema={"type": ["number", "null"], "minimum": 0},
        defaults={_DIFF: "3%"},
    )
    design: str = _option(
        "alternating",
        Choice(lambda: list(DESIGNS)),
        "Order of the blocks: alternating, turns or sequential (never valid).",
        commands=(_COMPARE,),
        metavar="NAME",
        spec_key="design",
    )
    agreement: bool = _option(
        True,
        Switch(),
        "Skip the proof: every verdict is then INVALID.",
        commands=(_COMPARE,),
        turns_off=True,
        spec_key="agreement_requested",
    )
    unequal: Sequence[str] = _option(
        (),
        Choices(lambda: _resources()),
        "Accept unequal resources, such as threads.",
        commands=(_COMPARE, _SCALE),
        metavar="NAME",
        spec_key="unequal",
    )
    certify_again: bool = _option(
        False,
        Switch(),
        "Certify anew, and keep the new certificate.",
        commands=(_COMPARE,),
    )
    energy: bool = _option(
        True,
        Switch(),
        "Do not measure energy: some 6 s on a GPU.",
        commands=(_COMPARE,),
        turns_off=True,
        spec_key="energy_requested",
    )
    measures_memory: bool = _option(True, Switch(), "Measure memory. A search leaves it out.")
    cold_compile: bool = _option(
        False,
        Switch(),
        "Compile anew and measure compile time.",
        commands=(_COMPARE, _SCALE),
        spec_key="cold_compile_requested",
    )
    void_limit: float | None = _option(
        None,
        Number("cores above 0, up to 4096", 4096),
        "Cores that others may keep busy.",
        commands=(_COMPARE, _DIFF),
        metavar="CORES",
        unit="cores",
        default_text="0.25, and 0.25 more per spare core",
        spec_key="void_limit",
        schema={"type": ["number", "null"], "exclusiveMinimum": 0},
    )
    search_anew: bool = _option(
        False,
        Switch(),
        "Search for the fastest kernels in every round.",
        commands=(_COMPARE, _SCALE),
        spec_key="search_anew_requested",
    )
    deterministic: bool = _option(
        False,
        Switch(),
        "Use algorithms that repeat a run bit for bit.",
        commands=_TRAINING,
        spec_key="deterministic",
    )
    deadline: float | None = _option(
        None,
        Number(f"seconds above 0, up to {2**31 - 1}", 2**31 - 1),
        "Limit of each phase.",
        commands=(*_ALL, _REPRODUCE, "map"),
        metavar="SECONDS",
        unit="seconds",
        default_text="300 to 21600",
        spec_key="deadline_seconds",
        schema={"type": ["number", "null"], "exclusiveMinimum": 0},
    )
    devices: int = _option(
        1,
        Whole(1),
        "Devices that share each batch.",
        group=SEVERAL_DEVICES,
        commands=(_COMPARE, _AGREE),
        metavar="N",
        unit="devices",
        spec_key="devices",
    )
    batch_norm: str = _option(
        "sync",
        Choice(lambda: _interface().BATCH_NORMS),
        "sync takes the statistics of the whole batch, local those of each device's part.",
        group=SEVERAL_DEVICES,
        commands=_TRAINING,
        metavar="NAME",
        spec_key="batch_norm",
    )
    rotation: int = _option(1, Whole(1), "GPUs that rounds rotate over.", unit="GPUs", spec_key="rotation")
    explain: bool = _option(
        False,
        Switch(),
        "Show where the time of a step goes, side by side.",
        commands=(_COMPARE,),
    )
    communication: bool = _option(False, Switch(), "Measure communication that several GPUs do not hide.")
    store: str | Path | None = _option(
        None,
        PathOf("a folder's path"),
        "Keep certificates and finished cells here.",
        group=OUTPUT,
        commands=(_COMPARE, _AGREE, _CAMPAIGN, _DIFF),
        metavar="DIR",
        default_text="~/.cache/samestep",
    )
    confidence: float = _option(0.95, Number("above 0 and below 1", 1, below=True), "Level.", spec_key="confidence")


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """Everything that a user can ask of one comparison. A plan resolves the fields that stand here."""

    contenders: Sequence[str] | None = _option(
        None,
        Texts("a list such as ['torch:tuned', 'jax']"),
        "BACKEND[:TUNING], such as torch or jax:tuned. TUNING may be knobs joined by '+'. The first is the baseline.",
        group=WHAT,
        commands=_ALL,
        metavar="CONTENDER",
        default_text="torch jax",
        flag="",
        example="torch:tuned jax:tuned",
        helps={
            TUNE: "Backends whose knobs are searched: torch, jax.",
            LADDER: "Backends that climb: torch, jax.",
        },
        examples={TUNE: "torch jax", LADDER: "torch jax"},
    )
    workload: "str | Workload" = _option(
        "digits-cnn",
        Instance("a name that samestep workloads lists, or a compare.Workload", lambda: (str, _workload())),
        "What to train. `samestep workloads` lists all.",
        group=WHAT,
        commands=_ALL,
        metavar="NAME",
        rank=1,
        example="--workload resnet50",
        pytest_help="Workload",
    )
    tuning: str | None = _option(
        None,
        Text(),
        "Tuning where none is named: stock, compiled, tuned, best, with infer ahead-of-time.",
        group=WHAT,
        commands=(*_ALL, _DIFF),
        metavar="NAME",
        default_text="compiled",
        rank=2,
        example="--tuning tuned",
        in_python=False,
    )
    knobs: str | None = _option(
        None,
        Text(),
        "Knobs instead of a tuning: see `samestep knobs`.",
        group=WHAT,
        commands=_ALL,
        metavar="KNOB=VALUE,...",
        rank=3,
        example="--knobs compile,channels-last=off",
        in_python=False,
    )
    batch_size: int | None = _option(
        None,
        Whole(2),  # batch norm has no variance over one image
        "Images per step, over all devices, or per request.",
        group=WHAT,
        commands=(*_ALL, _DIFF),
        metavar="N",
        unit="images",
        default_text="the workload's",
        rank=4,
        example="--batch-size 128",
        spec_key="batch_size",
        schema={"type": "integer", "minimum": 1},
        helps={
            _FIT: "Images per step. The least memory for this batch is searched for.",
            _SCALE: "Images per step of each device; with --strong of all together.",
        },
    )
    epochs: int | None = _option(
        None,
        Whole(1),
        "Passes over the data.",
        group=WHAT,
        commands=_TRAINING,
        metavar="N",
        unit="epochs",
        default_text="the workload's",
        spec_key="epochs",
    )
    timed: bool = _option(True, Switch(), "Time rounds.")
    rounds: int | None = _option(
        None,
        Whole(2),
        "Rounds. More rounds give narrower intervals.",
        commands=(_COMPARE, _SCALE, _REPRODUCE, _DIFF),
        metavar="N",
        unit="rounds",
        default_text="3 to 10, until every verdict is certain",
        rank=7,
        example="--rounds 20",
        spec_key="rounds_requested",
        schema={"type": "integer", "minimum": 0},  # a certificate has none
        pytest_help="Rounds",
        helps={
            _REPRODUCE: "Rounds, instead of the stored number.",
        },
        defaults={_SCALE: "10", EXPLAIN: "3", LADDER: "3", _DIFF: "3 to 20, until the gate is clear"},
    )
    parallel: str | None = _option(
        None,
        Text(),
        "Split of batches: ddp (torch), pmap, sharded (jax).",
        group=SEVERAL_DEVICES,
        commands=_TRAINING,
        metavar="WAY,...",
        example="--parallel ddp,sharded",
        in_python=False,
    )
    seeds: int = _option(
        5,
        Whole(2, 1000),
        "Training runs of each contender for the accuracy gate.",
        commands=(_AGREE,),
        metavar="N",
        unit="training runs",
    )
    out: str | Path | None = _option(
        None,
        PathOf("a folder's path", Path),
        "Folder for the result file.",
        group=OUTPUT,
        commands=(*_ALL, _REPRODUCE, _CAMPAIGN, _DIFF),
        metavar="DIR",
        default_text="samestep-out/TIME",
        rank=10,
        example="--out results",
        helps={_CAMPAIGN: "Folder for the report and the cells' results."},
        defaults={_CAMPAIGN: "samestep-out/NAME"},
    )
    request: "Request | None" = _option(
        None,
        Instance("a compare.Request", lambda: (_request(),)),
        "How a pair of your own models is brought together.",
        group=OWN_MODELS,
        commands=(_COMPARE, _AGREE),
        flag="",
    )

    def check(self) -> None:
        """Check each setting by itself. None stands for a default.

        Raises:
            Refused: for a value that is not allowed, by its flag.
        """
        for option in SETTINGS.values():
            value = getattr(self, option.name)
            if value is not None:
                option.check(value)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The options that only the command line has: abbreviations, a pair of models, and how to print."""

    quick: bool = _option(
        False,
        Switch(),
        "5 rounds, up to 5 more for void ones. No energy.",
        commands=(_COMPARE, _SCALE),
        rank=8,
        example="--quick --device cpu",
        sets={"rounds": 5, "energy": False},
        helps={_SCALE: "5 rounds, up to 5 more for void ones."},
    )
    paper: bool = _option(
        False,
        Switch(),
        "20 rounds, up to 20 more for void ones.",
        commands=(_COMPARE, _SCALE),
        sets={"rounds": 20},
    )
    skip_cold_compile: bool = _option(
        False,
        Switch(),
        "The default.",
        commands=(_COMPARE, _SCALE),
        sets={"cold_compile": False},
        is_hidden=True,
    )
    jax: str | None = _option(
        None,
        Text(),
        "Factory of your flax model, in a file or module.",
        group=OWN_MODELS,
        commands=_PAIR,
        metavar="FILE.py:NAME",
        example="--jax my.py:flax --torch my.py:torch --input 32x32x3 --classes 10",
    )
    torch: str | None = _option(
        None, Text(), "Factory of your torch model.", group=OWN_MODELS, commands=_PAIR, metavar="FILE.py:NAME"
    )
    image: Sequence[str] = _option(
        (),
        Texts(),
        "Size of its images. Several inputs: NAME=SHAPE.",
        group=OWN_MODELS,
        commands=_PAIR,
        metavar="HxWxC",
        flag="--input",
    )
    classes: int | None = _option(
        None, Whole(2), "Number of its classes.", group=OWN_MODELS, commands=_PAIR, metavar="N", unit="classes"
    )
    model_args: Sequence[str] = _option(
        (),
        Texts(),
        "Argument of both factories; jax.KEY or torch.KEY for one. Repeatable.",
        group=OWN_MODELS,
        commands=_PAIR,
        metavar="KEY=VALUE",
    )
    optimizer: str | None = _option(
        None,
        Text(),
        "sgd, adam or adamw, with ,KEY=VALUE.",
        group=OWN_MODELS,
        commands=(_COMPARE, _AGREE, _DIFF),
        metavar="NAME,...",
        default_text="sgd",
    )
    loss: Sequence[str] = _option(
        (),
        Texts(),
        "cross-entropy, bce, mse, l1, huber, or OUTPUT=LOSS.",
        group=OWN_MODELS,
        commands=_PAIR,
        metavar="LOSS",
        default_text="cross-entropy",
    )
    weights_map: Path | None = _option(
        None,
        PathOf("a JSON file's path", Path),
        "Names of torch's variables to flax's, as `samestep map` prints them.",
        group=OWN_MODELS,
        commands=_PAIR,
        metavar="FILE",
        default_text="matched automatically",
    )
    weights_from: str | None = _option(
        None,
        Choice(lambda: ("torch", "jax")),
        "Whose initial weights: torch or jax.",
        group=OWN_MODELS,
        commands=(_COMPARE, _AGREE),
        metavar="NAME",
        default_text="torch",
    )
    allow: Sequence[str] = _option(
        (),
        Texts(),
        "Accept a difference: running-variance. Repeatable.",
        group=OWN_MODELS,
        commands=(_COMPARE, _AGREE),
        metavar="NAME",
    )
    undecided: str = _option(
        "pass",
        Choice(lambda: UNDECIDED),
        "What an INCONCLUSIVE verdict does: pass, fail (exit code 4) or skip (it is left out).",
        group=OUTPUT,
        commands=(_COMPARE, _CAMPAIGN, "diff"),
        metavar="NAME",
    )
    as_json: bool = _option(
        False,
        Switch(),
        "Print the result as JSON, and nothing else.",
        group=OUTPUT,
        commands=(*_ALL, _REPRODUCE, _CAMPAIGN, "selftest", "diff", "verify"),
        flag="--json",
        helps={
            _CAMPAIGN: "Print campaign.json, and nothing else.",
            "selftest": "Print the proofs as JSON alone.",
            "diff": "Print the changes as JSON alone.",
            "verify": "Print the checks as JSON alone.",
            _REPRODUCE: "Print what differs and the claims as JSON alone.",
        },
    )


def _precisions() -> Sequence[str]:
    from compare.base.precisions import PRECISIONS

    return list(PRECISIONS)


def _resources() -> Sequence[str]:
    from compare.agreement.unequal_resources import NAMES

    return list(NAMES)


def _pruning_scores() -> Sequence[str]:
    from compare.data.pruning import SCORES

    return SCORES


def _interface() -> Any:
    from compare.base import interface

    return interface


def _workload() -> type:
    from compare.base.workloads import Workload

    return Workload


def _request() -> type:
    from compare.settings.pair_spec import Request

    return Request


def _options(cls: type) -> Iterator[Option]:
    for defined in fields(cls):
        option: Option = defined.metadata["option"]
        flag = option.flag
        if flag == "auto":
            prefix = "--skip-" if option.turns_off else "--"
            flag = prefix + defined.name.replace("_", "-") if option.commands else ""
        yield replace(option, name=defined.name, flag=flag)


SETTINGS: Mapping[str, Option] = {option.name: option for option in _options(Settings)}
"""The options of `Settings`, by name."""

COMMAND_LINE: Mapping[str, Option] = {option.name: option for option in _options(CommandLine)}
"""The options of `CommandLine`, by name."""


def list_options(command: str) -> list[Option]:
    """Return the options that the command line of a command takes."""
    everything = [*SETTINGS.values(), *COMMAND_LINE.values()]
    if command == EXPLAIN:  # a comparison with one more table
        return [option for option in list_options(_COMPARE) if option.name not in _NOT_EXPLAINED]
    if taken := {TUNE: _TUNED, LADDER: _CLIMBED}.get(command):
        return [option for option in list_options(_COMPARE) if option.name in taken]
    return [option for option in everything if command in option.commands and (option.flag or option.metavar)]


def list_python_names(command: str) -> list[str]:
    """Return the names of the settings that Python has for a command's work, in alphabetical order."""
    return sorted(name for name, option in SETTINGS.items() if command in option.commands and option.in_python)


def make_names(texts: Sequence[str]) -> list[str]:
    """Return a unique name for each contender as written. The second `torch` is named `torch#2`."""
    names: list[str] = []
    for index, text in enumerate(texts):
        earlier = texts[:index].count(text)
        names.append(text if not earlier else f"{text}#{earlier + 1}")
    return names


def to_spec(plan: RunSettings) -> dict[str, Any]:
    """Return a plan's settings under the keys of the result's `spec`."""
    values = {option.spec_key: getattr(plan, name) for name, option in SETTINGS.items() if option.spec_key}
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}


def from_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a result's `spec` states, by their names."""
    keys = {name: option.spec_key for name, option in SETTINGS.items() if option.spec_key}
    return {name: spec[key] for name, key in keys.items() if key in spec}


def make_spec_schema() -> dict[str, Any]:
    """Return the JSON schema of every key that an option has in the result's `spec`."""
    return {option.spec_key: option.schema or option.kind.schema for option in SETTINGS.values() if option.spec_key}
