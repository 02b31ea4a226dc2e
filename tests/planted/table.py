"""The table of planted bugs: which gate catches each, at which tensor and by how much.

python -m tests.planted.table > docs/reference/planted-bugs.md
"""

import sys
import tempfile
from pathlib import Path

from compare.agreement.certificate import Certificate
from compare.report.sentences import DASH
from tests.planted.bug import Bug
from tests.planted.bugs import BUGS
from tests.planted.certify import Clean, certify

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "planted-bugs.md"
HEAD = """# Planted bugs

Each row is one small change of meaning in one backend. The certificate judges it against the other backend without the
change. The test suite plants every bug again. It fails if a gate misses one, or if it is named at another tensor.

The tests also make certificates without any bug, at 50 seeds of every workload, and fail at the first alarm. Large
workloads have 10 seeds, and 50 with `-m thorough`.

The last two columns belong to the named tensor, which is the first to differ in execution order. e64 may be at most
1e-10, and e32/e64 at least 1e6. A dash means that the records cannot be compared, or that only the precision gate sees
the change.

`python -m tests.planted.table` writes this page.

| change | side | workload | caught by | first tensor | e64 | e32/e64 |
|---|---|---|---|---|---|---|
"""


def caught_by(bug: Bug, found: Certificate) -> str:
    """Return the failed gates, or the records if no gate could be computed."""
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
