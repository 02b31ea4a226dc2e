"""Follow the first machine of a run: start and end this machine's share of contenders' processes."""

import contextlib
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from compare.base import scratch
from compare.base.interface import Refused
from compare.base.process_family import ProcessFamily
from compare.base.process_group import RankInfo, own_gpu, start_command
from compare.base.protocol import Message, ProtocolError
from compare.cluster import launch_info, wire
from compare.cluster.launch_info import LaunchInfo
from compare.cluster.wire import Wire
from compare.machine import variables
from compare.store import private_folder

GONE = 3


def follow(here: LaunchInfo, seconds: float, description: Message) -> int:
    """Serve the first machine until it ends the run, and return the exit code. It has `seconds` to appear.

    Raises:
        Refused: the first machine cannot be reached, or has another token.
    """
    where = f"{here.address} port {here.port}"
    try:
        first = wire.connect(here.address, here.port, here.token, seconds)
    except PermissionError as error:
        raise Refused(f"{where} has another {launch_info.TOKEN}; allowed: the same on all machines") from error
    except OSError as error:
        raise Refused(
            f"machine 0 of {here.count} cannot be reached at {where}: {error.strerror or error}; allowed: samestep "
            f"started on all by {here.launcher}, which this machine can connect to"
        ) from error
    first.send({"machine": here.number, **description})
    with scratch.open_folder() as folder:
        shares = Shares(first, here.address, folder)
        try:
            return shares.serve()
        except (EOFError, ProtocolError, OSError):
            sys.stderr.write(f"samestep: machine 0 of {here.count} at {where} is gone\n")
            return GONE
        finally:
            shares.end_all()
            first.close()


class Shares:
    """The processes of this machine, by share."""

    def __init__(self, first: Wire, address: str, scratch: Path) -> None:
        self._first, self._address, self._scratch = first, address, scratch
        self._running: dict[int, list[ProcessFamily]] = {}
        self._logs = 0

    def serve(self) -> int:
        """Execute the first machine's commands, and return the exit code that it sends at the end.

        Raises:
            EOFError, ProtocolError, OSError: the first machine has hung up.
        """
        while True:
            message, _ = self._first.receive()
            match message:
                case {"command": "close", "code": code}:
                    return int(code)
                case {"command": "start", "share": int(share)}:
                    self._first.send(self._start(share, message))
                case {"command": "end", "share": int(share)}:
                    self._end(share)
                    self._first.send({"done": share})
                case _:
                    raise ProtocolError(str(message)[:80])

    def end_all(self) -> None:
        """End every process."""
        for share in list(self._running):
            self._end(share)

    def _start(self, share: int, command: dict[str, Any]) -> Message:
        try:
            kept = private_folder.find_programs(self._scratch / "cache-kept")
        except Refused as refusal:
            return {"error": str(refusal)}
        folder = kept if command["cache"] is None else self._scratch / str(command["cache"])
        added = command["environment"] | variables.make_cache_environment(command["backend"], folder, kept)
        added |= variables.make_temporary_environment(self._scratch)
        added |= variables.make_bytecode_environment(command["backend"], kept)
        running = self._running.setdefault(share, [])
        for values in command["ranks"]:
            self._logs += 1
            log = self._scratch / f"{self._logs:05d}.log"
            # The first machine does not know which address the others use for it.
            rank_info = replace(RankInfo(**values), host=self._address)
            try:
                own = added | own_gpu(rank_info, command["device"], os.environ)
                process = ProcessFamily(start_command(command["package"], rank_info, command["port"]), own, log)
            except OSError as error:
                self._end(share)
                return {"error": f"a process could not be started: {error.strerror}"}
            running.append(process)
            threading.Thread(target=self._watch, args=(share, process), daemon=True).start()
        return {"done": share}

    def _end(self, share: int) -> None:
        for process in self._running.pop(share, ()):
            process.end()

    def _watch(self, share: int, process: ProcessFamily) -> None:
        process.wait()
        if process in self._running.get(share, ()):  # it has ended by itself
            status, reason = process.death() or ("crash", "ended")
            with contextlib.suppress(OSError):
                self._first.send({"lost": share, "status": status, "reason": f"a process {reason}"})
