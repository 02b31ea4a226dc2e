"""Contenders: BACKEND[:TUNING] as a user writes it, parsed and named."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compare.base import arguments
from compare.base.errors import suggest
from compare.base.interface import Refused
from compare.base.knobs import PARALLEL, PARALLEL_WORDS, has_knobs
from compare.base.workloads import PAIR, Workload
from compare.machine import environment
from compare.settings import backends, options, tunings

DEFAULT_TUNING = "compiled"
PLAIN_CONTENDERS = ("torch:stock", "jax:pieces")
"""Neither compiles a program as large as a whole model: what tells whether two models are the same function."""


@dataclass(frozen=True)
class Contender:
    """One side of a comparison.

    Attributes:
        name: unique within a run: a repeated contender is named `torch#2`.
        revision: the revision of the user's code that it runs, as the user writes it; "" for the files as they are.
        commit: the commit of that revision.
        code: the folder with that commit (`compare.settings.revisions`).
    """

    name: str
    backend: str
    tuning: str
    revision: str = ""
    commit: str = ""
    code: str = ""

    @property
    def file_name(self) -> str:
        """The name as a part of a file's name. A revision may have a slash."""
        return self.name.replace("/", "_")

    @property
    def package(self) -> str:
        """The package that serves this contender's backend."""
        return backends.find(self.backend).module


def split_revision(text: str) -> tuple[str, str]:
    """Return a contender's text without its revision, and the revision: `torch@main` is ('torch', 'main').

    Raises:
        Refused: the text ends with @.
    """
    contender, sign, revision = text.partition("@")
    if sign and not revision:
        raise Refused(f"contender {text!r} has an empty revision; allowed: BACKEND[:TUNING]@REV, such as @main")
    return contender, revision


def make_default_tuning(backend: str) -> str:
    """Return the tuning of a contender that names none. Only `stock` exists for a backend without knobs."""
    return DEFAULT_TUNING if has_knobs(backend) else tunings.STOCK


_ALONE: Mapping[str, tuple[str, str]] = {
    "torch": ("torch:stock", "torch:compiled"),
    "jax": ("jax:stock", "jax:pieces"),
}
"""The tunings that are compared where a user gives one model and names no contenders."""


def choose_default_contenders(workload: Workload) -> tuple[str, ...]:
    """Return the contenders of a comparison that nobody has named."""
    sides = list_sides(workload)
    return _ALONE[sides[0]] if len(sides) == 1 else options.DEFAULT_CONTENDERS


def choose_certificate_contenders(workload: Workload, devices: int) -> tuple[str, ...]:
    """Return the contenders of a certificate that nobody has named, where nothing is timed."""
    if is_alone(workload) or workload.model.family != PAIR:
        return choose_default_contenders(workload)
    return PLAIN_CONTENDERS if devices == 1 else ("torch:stock", "jax:stock")  # pieces take one device


def choose_plain_contenders(workload: Workload) -> tuple[str, ...]:
    """Return a contender for each model of a user, and none compiles a program as large as a whole model."""
    sides = list_sides(workload)
    return tuple(text for text in PLAIN_CONTENDERS if text.partition(":")[0] in sides)


def list_sides(workload: Workload) -> tuple[str, ...]:
    """Return the backends that have a model: those of a user's models, and all for a built-in workload."""
    if workload.model.family != PAIR:
        return options.DEFAULT_CONTENDERS
    return tuple(backend for backend in options.DEFAULT_CONTENDERS if backend in workload.model.arguments)


def is_alone(workload: Workload) -> bool:
    """Tell whether a user gave one model, of one framework."""
    return len(list_sides(workload)) == 1


def check_sides(contenders: Sequence[Contender], workload: Workload) -> None:
    """Check that every contender has a model.

    Raises:
        Refused: a contender's backend has no model of the user's.
    """
    sides = list_sides(workload)
    without = next((each for each in contenders if each.backend not in sides), None)
    if without is not None and is_alone(workload):
        raise Refused(
            f"contender {without.name} has no model: {' and '.join(f'--{side}' for side in sides)} is given alone; "
            f"allowed: contenders of {sides[0]}, such as {' '.join(_ALONE[sides[0]])}, or --{without.backend} as well"
        )


def add_tuning(texts: Sequence[str], tuning: str | None, knobs: str | None) -> list[str]:
    """Return the contenders with the tuning of `--tuning`, or the knobs of `--knobs`, where they name none.

    Raises:
        Refused: for both options at once, an empty one, a word that is no knob, or one that no contender takes.
    """
    option, given = ("--tuning", tuning) if knobs is None else ("--knobs", knobs)
    if tuning is not None and knobs is not None:
        raise Refused("--tuning and --knobs exclude each other; allowed: --tuning NAME+KNOB+...")
    chosen = tuning if knobs is None else knobs.replace(",", "+")
    if chosen is None:
        return list(texts)
    if not chosen:
        raise Refused("--tuning and --knobs must not be empty; allowed: stock, compiled, tuned, or knobs joined by ','")
    if all(":" in text for text in texts):
        raise Refused(f"{option}: every contender names its own tuning; allowed: with a contender that names none")
    for item in chosen.split("+"):
        tunings.check_word(item, f"{option} {given}", "+" if knobs is None else ",")
    return [text if ":" in text else f"{text}:{chosen}" for text in texts]


def add_parallel(texts: Sequence[str], parallel: str | None, otherwise: str | None = None) -> list[str]:
    """Return the contenders with the way of `--parallel` to use several devices, where they name none.

    A backend without one there takes that of `otherwise`, if any.

    Raises:
        Refused: for an unknown way, two for one backend, or one that no contender takes.
    """
    asked, default = _ways(parallel), _ways(otherwise)

    def taker(text: str) -> str:
        """Return the backend of a contender that names no way, "" of one that does."""
        backend, _, tuning = text.partition(":")
        named = any(part.partition("=")[0] in ("parallel", *PARALLEL_WORDS) for part in tuning.split("+"))
        return "" if named else backend

    takers = [taker(text) for text in texts]
    if unused := next((backend for backend in asked if backend not in takers), None):
        raise Refused(
            f"--parallel {parallel}: no contender of {unused} takes {asked[unused]}; "
            f"allowed: with a contender of {unused} that names no way"
        )
    ways = default | asked

    def with_way(text: str, backend: str) -> str:
        whole = text if ":" in text else f"{text}:{make_default_tuning(backend)}"
        return f"{whole}+{ways[backend]}" if backend in ways else text

    return list(map(with_way, texts, takers))


def _ways(parallel: str | None) -> dict[str, str]:
    """Return the way of each backend that `--parallel` names."""
    ways: dict[str, str] = {}
    for word in [] if parallel is None else parallel.split(","):
        backend = next((backend for backend, words in PARALLEL.items() if word in words), None)
        if backend is None or backend in ways:
            what = "unknown" if backend is None else "a second for"
            raise Refused(
                f"--parallel {parallel}: {what} {backend or word!r}; allowed: pmap or sharded for jax, ddp for torch"
            )
        ways[backend] = word
    return ways


def parse_backends(texts: Sequence[str], command: str) -> list[str]:
    """Return the backends that a user names for a command that chooses the tunings itself.

    Raises:
        Refused: a contender names a tuning or a revision, or as `parse`.
    """
    for text in texts:
        if ":" in text or "@" in text:
            raise Refused(f"samestep {command} {text} is not allowed; allowed: backends such as torch and jax")
    return [contender.backend for contender in parse(list(dict.fromkeys(texts)), 1)]


def parse(texts: Sequence[str], least: int = 2) -> list[Contender]:
    """Return the contenders of a command line, the first being the baseline.

    Raises:
        Refused: for what is no list of texts, fewer than `least`, an unknown backend, an empty tuning or a backend that
            is not installed.
    """
    arguments.check_text_list("contenders", texts, "a list such as ['torch:tuned', 'jax']")
    contenders: list[Contender] = []
    for text, name in zip(texts, options.make_names(texts), strict=True):
        plain, revision = split_revision(text)
        backend, colon, tuning = plain.partition(":")
        known = backends.find_all()
        if backend not in known:
            question = suggest(re.split("[^a-z]", plain.lower())[0], known)
            raise Refused(
                f"unknown contender {text!r}; {question}allowed: BACKEND[:TUNING] with BACKEND {' or '.join(known)}, "
                "such as torch, torch:tuned or torch:compile+channels-last"
            )
        if colon and not tuning:
            raise Refused(f"contender {text!r} has an empty tuning; allowed: stock, compiled, tuned or knobs")
        missing = [package for package in known[backend].distributions if not environment.is_installed(package)]
        if missing:
            raise Refused(
                f"contender {text!r} needs the package {', '.join(missing)}, which is not installed; "
                f"install it with: pip install 'samestep[{backend}]'"
            )
        contenders.append(Contender(name, backend, tuning or make_default_tuning(backend), revision))
    if len(contenders) < least:
        raise Refused(
            f"a comparison needs at least two contenders, got {len(texts)}: {' '.join(texts) or 'none'}; allowed: two "
            "or more, such as torch:tuned jax:tuned"
        )
    return contenders
