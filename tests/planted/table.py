"""The table of planted bugs: which gate catches each, at which tensor and by how much.

python -m tests.planted.table > docs/planted-bugs.md
"""

import sys
import tempfile
from pathlib import Path

from compare.agreement.certificate import Certificate
from compare.report.sentences import DASH
from tests.planted.bug import Bug
from tests.planted.bugs import BUGS
from tests.planted.certify import Clean, certify

PAGE = Path(__file__).parents[2] / "docs" / "planted-bugs.md"
HEAD = """# Planted bugs

What the certificate catches: each line is one small change of meaning in one backend, judged against the other backend
without it. Written by `python -m tests.planted.table`; the test suite plants every bug again and fails if one is
missed, named at another tensor, or not listed here. It also makes certificates without any bug, at 50 seeds of every
workload (of large ones at 10, and at 50 with `-m thorough`), and fails at the first alarm. e64 and e32/e64 are those of
the tensor named, which is the first to differ in execution order; they have to be at most 1e-10 and at least 1e6. A
dash stands where the records cannot be compared at all, or where only the precision gate, in the precision given, sees
the change.

| change | side | workload | caught by | first tensor | e64 | e32/e64 |
|---|---|---|---|---|---|---|
"""


def caught_by(bug: Bug, found: Certificate) -> str:
    """Return which gates failed; the records themselves where no gate could be computed."""
    failed = [gate.name for gate in found.gates if not gate.passed]
    if all(gate.value is None for gate in found.gates):
        return "comparison of records"
    return ", ".join(failed) + (f" ({bug.precision})" if bug.precision != "float64" else "")


def line(bug: Bug, found: Certificate) -> str:
    """Return the table's line of one bug."""
    tensor = (found.first_mismatch or "").split(" ")[0].rstrip(":")
    evidence = next((each for each in found.evidence if each.name == tensor), None)
    semantic = evidence is not None and bug.precision == "float64"
    figures = f"{evidence.e64:.1e} | {evidence.scaling:.1e}" if evidence and semantic else f"{DASH} | {DASH}"
    return f"| {bug.name} | {bug.side} | {bug.probe} | {caught_by(bug, found)} | `{tensor}` | {figures} |"


def words(line: str) -> str:
    """Return a line without its figures, which change with the machine's rounding."""
    return line.rsplit("|", 3)[0]


def main() -> None:
    """Print the page."""
    with tempfile.TemporaryDirectory() as folder:
        clean = Clean(Path(folder))
        sys.stdout.write(HEAD + "".join(f"{line(bug, certify(bug, clean))}\n" for bug in BUGS))


if __name__ == "__main__":
    main()
