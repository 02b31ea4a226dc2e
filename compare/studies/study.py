"""Run the cells of a study: keep finished ones, run the others, and go on after any interruption.

All studies of one store share its finished cells. A lock for each cell lets several processes work on one study. A lock
for each device keeps two cells from disturbing each other's times.
"""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep

from compare.base import output
from compare.base.interface import Refused
from compare.execution import execute
from compare.machine import nvml
from compare.results import result_file, verdicts
from compare.settings import plan
from compare.studies import cell_store
from compare.studies.cell_store import PENDING, REFUSED, CellState, CellStore
from compare.studies.cells import Cell, find_place

_WAIT_SECONDS = 2.0

OnChange = Callable[[CellState], None]


@dataclass(frozen=True)
class Study:
    """Cells with their store.

    Attributes:
        cells: the comparisons, in the order in which they run.
        store: where finished cells are kept.
        command: the command line that results name as their origin.
        anywhere: whether a finished cell of another kind of machine counts.
    """

    cells: Sequence[Cell]
    store: CellStore
    command: Sequence[str]
    anywhere: bool = True

    def find_states(self) -> list[CellState]:
        """Return the state of every cell without running any: finished, refused or pending."""
        return [self._find(cell) for cell in self.cells]

    def run(self, on_change: OnChange) -> list[CellState]:
        """Run every cell that is not finished, and return all states in the order of the cells.

        `on_change` gets each state as soon as it is known. A cell that another process runs is waited for. A cell that
        is refused or fails does not stop the others.

        Raises:
            KeyboardInterrupt, SystemExit: an interruption, whose cell stays pending.
            OSError: the store cannot be written to.
        """
        states = dict[str, CellState]()
        waiting = list(self.cells)
        while waiting:
            remaining = list[Cell]()
            for cell in waiting:
                place = f"cell {len(states) + 1} of {len(self.cells)}, {cell.name}: "
                if (state := self._try(cell, place)) is None:
                    remaining.append(cell)
                    continue
                states[cell.name] = state
                on_change(state)
            if len(remaining) == len(waiting):
                sleep(_WAIT_SECONDS)
            waiting = remaining
        return [states[cell.name] for cell in self.cells]

    def run_cell(self, cell: Cell, part: str = "") -> CellState:
        """Return the state of one cell after it has run, or as an earlier run kept it. `part` starts its messages.

        Raises:
            KeyboardInterrupt, SystemExit, OSError: as `run`.
        """
        while (state := self._try(cell, part)) is None:
            sleep(_WAIT_SECONDS)
        return state

    def _find(self, cell: Cell) -> CellState:
        try:
            return self.store.find(cell, anywhere=self.anywhere) or CellState(cell)
        except Refused as error:
            return CellState(cell, REFUSED, str(error))

    def _try(self, cell: Cell, part: str) -> CellState | None:
        """Return the state of a cell after its run, or None if another process is at it."""
        state = self._find(cell)
        if state.status != PENDING:
            return state
        with self.store.lock(f"cell-{cell.key}") as is_mine:
            if not is_mine:
                return None
            state = self._find(cell)  # another process may have finished it meanwhile
            return state if state.status != PENDING else self._execute(cell, part)

    def _execute(self, cell: Cell, part: str) -> CellState:
        try:
            with self.store.lock(_name_device(cell.device), wait=True):
                start = monotonic()
                chosen = plan.make(cell.settings)
                result, path, interruption = execute.execute_until_interrupted(chosen, self.command, part=part)
                seconds = monotonic() - start
        except Refused as error:
            return CellState(cell, REFUSED, str(error))
        if interruption is not None:
            raise interruption
        status, reason = cell_store.judge(result)
        place = find_place(result.environment, result.spec.device)
        finished = CellState(cell, status, reason, path.read_bytes(), place, round(seconds, 1))
        return replace(self.store.add(finished), kept=False)


def run_alone(cell: Cell, store: CellStore, command: Sequence[str], part: str) -> CellState:
    """Return the state of a cell of this kind of machine, and write its result into its folder.

    A cell with too few valid rounds leaves the store, so that the same command times it again. `part` starts messages.

    Raises:
        Refused, KeyboardInterrupt, SystemExit, OSError: as `write_result` and `Study.run`.
    """
    state, folder = Study([cell], store, command, anywhere=False).run_cell(cell, part), cell.settings.out
    if state.result is not None and folder is not None:
        output.make_folder(Path(folder))
        write_result(state, Path(folder))
        if state.result.spec.rounds - len(state.result.voided) < verdicts.LEAST_ROUNDS:
            store.remove(cell)
    return state


def write_result(state: CellState, folder: Path) -> Path | None:
    """Write the result of a cell to `folder/result.json`, unless it is there already. Return its path, or None.

    Raises:
        Refused: the file system refuses.
    """
    if state.data is None:
        return None
    path = folder / result_file.FILE_NAME
    if path.is_file() and path.read_bytes() == state.data:
        return path
    return result_file.replace_bytes(path, state.data)


def _name_device(device: str) -> str:
    """Return a name for what a cell keeps busy: this machine's processor, or the GPUs that its children see."""
    gpus = f"-{'-'.join(nvml.list_visible())}" if device == "cuda" else ""
    return f"device-{platform.node()}-{device}{gpus}"
