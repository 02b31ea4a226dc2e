"""Run `samestep` with the fake backends, and send it signals when it has measured everything.

The first argument says when: `comparison` while a comparison's result is built and again while it is written, `scaling`
while the result of a whole scaling is built. A second argument of `no-room` has no folder take the result.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import tests.fakebackend.registered  # noqa: F401 -- registers them
from compare.base.interface import Refused
from compare.cli import app
from compare.execution import build_result
from compare.results import result_file
from compare.studies import scaling_result


def send_signals_and(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*arguments: Any) -> Any:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        return function(*arguments)

    return wrapper


def refuse(*_: Any) -> NoReturn:
    raise Refused("no room anywhere")


when = sys.argv.pop(1)
if sys.argv[1] == "no-room":
    del sys.argv[1]
    result_file.write_or_spare = refuse
if when == "comparison":
    build_result.build = send_signals_and(build_result.build)
    result_file.write_or_spare = send_signals_and(result_file.write_or_spare)
else:
    scaling_result.build = send_signals_and(scaling_result.build)
app.main()
