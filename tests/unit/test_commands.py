"""A command is defined once. The worker's method and its reply must fit the definition."""

import inspect
import json
from dataclasses import fields, replace
from typing import Any, cast, get_type_hints

import pytest

from compare.base import commands, strict_json
from compare.base.commands import (
    COMMANDS,
    Block,
    CompilingBlock,
    MeasureNoise,
    Open,
    Restart,
    Spin,
    WarmUp,
    read_command,
)
from compare.base.interface import RunSpec
from compare.base.protocol import ProtocolError
from compare.worker.worker import Worker

SPEC = RunSpec("digits-cnn", "float32", "cpu", 8, 0, {"parallel": "none"}, 1, "data.safetensors")
START = {"steps": 4, "losses": [2.0, None], "moved": {"kernel": 0.1}}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_worker_takes_a_command_s_arguments_and_returns_its_reply(name: str) -> None:
    command, method = COMMANDS[name], getattr(Worker, name)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    assert [each.name for each in parameters] == [field.name for field in fields(command)]  # pyright: ignore[reportArgumentType]
    returned = get_type_hints(method)["return"]
    assert returned in (command.reply, type(command.reply))


def test_a_command_crosses_the_pipe_and_comes_back_the_same() -> None:
    for command in (WarmUp(0.02, None), commands.Record(SPEC, 3, "folder"), MeasureNoise(SPEC, 3, [(1e-16, 0, 5)])):
        message = json.loads(json.dumps(command.message()))
        assert commands.read_command(message) == command


@pytest.mark.parametrize(
    "message", [{}, {"command": "dance"}, {"command": "block"}, {"command": "block", "steps": "many"}]
)
def test_what_is_no_command_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        commands.read_command(message)


@pytest.mark.parametrize(
    ("command", "value"),
    [
        (Block(3), "long"),
        (Block(3), True),
        (WarmUp(0.02, None), {"steady": True}),
        (Restart(), {"before": START, "after": START | {"losses": [2.0]}}),
        (Restart(), {"before": START, "after": START | {"moved": {"bias": 0.1}}}),
        (MeasureNoise(SPEC, 3, [(1e-16, 0, 5)]), []),
        (commands.Plant(0.1), 1),
    ],
)
def test_a_reply_of_another_type_is_refused(command: commands.Command[Any], value: Any) -> None:
    with pytest.raises(ProtocolError):
        command.read_reply(value)


def test_a_reply_is_read_as_its_type() -> None:
    restarted = Restart().read_reply({"before": START, "after": START})
    assert restarted.before == commands.TrainingStart(4, [2.0, None], {"kernel": 0.1})
    assert Block(3).read_reply(2) == 2
    assert strict_json.decode(int | None, None) is None


def test_a_deadline_of_the_user_s_replaces_the_command_s() -> None:
    assert (Block(1).seconds(None), Block(1).seconds(5.0)) == (600, 5)
    assert CompilingBlock(1).seconds(None) == WarmUp.deadline == 21600
    assert (Spin(10, 1).seconds(None), Spin(10, 1).seconds(5.0)) == (610, 15)


def test_values_of_knobs_keep_their_types() -> None:
    knobs = {"compile": True, "steps-per-dispatch": 1, "input": "stream"}
    command = Open(replace(SPEC, knobs=knobs))
    received = read_command(command.message())
    assert received == command
    assert [type(value) for value in cast(Open, received).spec.knobs.values()] == [bool, int, str]
    with pytest.raises(ProtocolError, match="is not str"):
        read_command(Open(replace(SPEC, knobs=cast(Any, {"compile": 0.5}))).message())
