"""Run one of a contender's further processes, `python -m BACKEND --rank RANK_INFO`. Rank 0 sends it its calls."""

import contextlib
import json
import os
import queue
import socket
import sys
import traceback
from dataclasses import replace
from typing import Any

from compare.base import process_family
from compare.base.interface import Arrays, Memory, Session
from compare.base.process_group import ProcessGroup, RankInfo, describe_error, exit_code, find_interface
from compare.base.protocol import Message
from compare.cluster import wire
from compare.cluster.launch_info import TOKEN
from compare.cluster.wire import Wire
from compare.worker.distributed_session import OWN_PART

CONNECT_SECONDS = 600.0
# For every other call, rank 0's own return value is enough.
_ANSWERED = ("losses", "inspect", "memory", "kernels", "settings")


def serve(process_group: ProcessGroup) -> None:
    """Connect to rank 0 and make its calls until it hangs up."""
    sys.stdout = sys.stderr
    values = json.loads(sys.argv[2])
    process_family.end_with_parent(values.pop("parent"))  # the parent may have ended already: imports take seconds
    process_family.be_killed_first()
    port, token = values.pop("port"), os.environ.pop(TOKEN)
    rank_info = RankInfo(**values)
    first = wire.connect(rank_info.host, port, token, CONNECT_SECONDS)
    if rank_info.machines > 1:
        rank_info = replace(rank_info, interface=find_interface(first.address))
    first.send({"rank": rank_info.rank, "versions": process_group.versions(), "host": socket.gethostname()})
    calls: queue.SimpleQueue[tuple[Message, Arrays]] = queue.SimpleQueue()
    first.read(lambda message, arrays: calls.put((message, arrays)), lambda error: _end(process_group, first, error))
    session: Session | None = None
    try:
        message, _ = calls.get()
        process_group.join(rank_info, message["device"], message["join"])
        while True:
            message, arrays = calls.get()
            name, arguments = message["call"], wire.unpack(message["arguments"], arrays)
            value: Any = None
            match name:
                case "close":
                    session = None
                case "open":
                    session = None  # frees its memory before the next session opens
                    session = process_group.open(arguments[0], rank_info)
                case _:
                    value = getattr(session, name)(*arguments)
            if name == "inspect":
                value = {key: array for key, array in value.items() if key.startswith(OWN_PART)}
            _answer(first, value if name in _ANSWERED else None)
    except Exception as error:
        _end(process_group, first, error)


def _answer(first: Wire, value: Any) -> None:
    arrays: Arrays = {}
    plain = wire.pack(vars(value) if isinstance(value, Memory) else value, arrays)
    first.send({"value": plain}, arrays)


def _end(process_group: ProcessGroup, first: Wire, error: Exception) -> None:
    """Report the error to rank 0 and end this process at once, because the others wait for it in an exchange."""
    if isinstance(error, EOFError):
        os._exit(1)
    traceback.print_exception(error)
    description = describe_error(process_group.out_of_memory, error)
    with contextlib.suppress(OSError):
        first.send(description)
    sys.stderr.flush()
    os._exit(exit_code(description))
