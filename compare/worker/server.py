"""Serve one backend to the parent over the pipe: read commands, execute them and answer."""

import os
import sys
import time
import traceback

from compare.base import commands, process_family, protocol, strict_json
from compare.base.commands import Greeting
from compare.base.interface import Backend, DiskFull, Refused
from compare.base.process_group import ProcessGroup, describe_error
from compare.worker import rank_worker
from compare.worker.worker import Clock, Worker


def serve(backend: Backend, clock: Clock = time.perf_counter, *, process_group: ProcessGroup | None = None) -> None:
    """Serve `backend` until the parent hangs up. The two command-line arguments are the descriptors of the pipe.

    With the argument `--rank`, be a further process of a contender of that `process_group` instead.
    """
    if sys.argv[1] == "--rank" and process_group is not None:
        rank_worker.serve(process_group)
    sys.stdout = sys.stderr
    process_family.end_with_parent(os.getppid())
    process_family.be_killed_first()
    channel = protocol.Channel(int(sys.argv[1]), int(sys.argv[2]))
    greeting = Greeting(protocol.VERSION, backend.name, backend.versions())
    channel.send(strict_json.encode(greeting))
    worker = Worker(backend, clock)
    while True:
        try:
            message = channel.receive()
            channel.send(_answer(backend, worker, message))
        except (EOFError, BrokenPipeError):
            process_family.end()


def _answer(backend: Backend, worker: Worker, message: protocol.Message) -> protocol.Message:
    try:
        command = commands.read_command(message)
        reply = getattr(worker, command.name)(**commands.list_arguments(command))
        return {"value": strict_json.encode(reply)}
    except Refused as error:  # with all lines of its message
        return {"error": {"status": "refused", "reason": str(error), "disk_full": isinstance(error, DiskFull)}}
    except Exception as error:
        traceback.print_exc()
        return {"error": describe_error(backend.out_of_memory, error)}
