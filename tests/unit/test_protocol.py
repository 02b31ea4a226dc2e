import json
import os
import threading
from collections.abc import Generator

import pytest

from compare.base import protocol
from compare.base.protocol import Channel, ProtocolError


@pytest.fixture
def pair() -> Generator[tuple[Channel, Channel]]:
    a_read, b_write = os.pipe()
    b_read, a_write = os.pipe()
    a, b = Channel(a_read, a_write), Channel(b_read, b_write)
    yield a, b
    a.close()
    b.close()


@pytest.fixture
def raw() -> Generator[tuple[Channel, int]]:
    """A channel and the descriptor of the other end, to write anything on."""
    read, write = os.pipe()
    channel = Channel(read, os.open(os.devnull, os.O_WRONLY))
    yield channel, write
    channel.close()
    os.close(write)


def test_a_message_arrives_as_it_was_sent(pair: tuple[Channel, Channel]) -> None:
    message = {"value": [1, 2.5, None, True, "é\n"], "nested": {"a": {}}}
    pair[0].send(message)
    assert pair[1].receive(1) == message


def test_messages_keep_their_order_and_borders(pair: tuple[Channel, Channel]) -> None:
    for number in range(100):
        pair[0].send({"number": number})
    assert [pair[1].receive(1)["number"] for _ in range(100)] == list(range(100))


def test_a_message_larger_than_the_pipe_arrives_whole(pair: tuple[Channel, Channel]) -> None:
    text = "x" * (1 << 20)
    sender = threading.Thread(target=pair[0].send, args=({"text": text},))
    sender.start()
    assert pair[1].receive(10)["text"] == text
    sender.join()


def test_a_message_in_pieces_is_put_together_across_deadlines(raw: tuple[Channel, int]) -> None:
    channel, write = raw
    os.write(write, b'{"a"')
    with pytest.raises(TimeoutError):
        channel.receive(0.01)
    os.write(write, b": 1}\n")
    assert channel.receive(1) == {"a": 1}


def test_the_deadline_holds_though_bytes_keep_coming(raw: tuple[Channel, int]) -> None:
    channel, write = raw
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.01):
            os.write(write, b" ")

    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(TimeoutError):
        channel.receive(0.2)  # it returns, while bytes go on to come
    assert dripping.is_alive()
    ended.set()
    dripping.join()


def test_the_other_end_gone_is_end_of_file_even_within_a_message() -> None:
    read, write = os.pipe()
    channel = Channel(read, os.open(os.devnull, os.O_WRONLY))
    os.write(write, b'{"a": 1}\n{"b"')
    os.close(write)
    assert channel.receive(1) == {"a": 1}
    with pytest.raises(EOFError):
        channel.receive(1)
    channel.close()


def test_sending_to_nobody_is_a_broken_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    channel = Channel(os.open(os.devnull, os.O_RDONLY), write)
    with pytest.raises(BrokenPipeError):
        channel.send({"a": 1})
    channel.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_json_cannot_say_is_not_sent(pair: tuple[Channel, Channel], value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        pair[0].send({"value": value})
    with pytest.raises(TimeoutError):
        pair[1].receive(0.01)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"hello", b"[1]", b"1", b"null", b"\xff\xfe", b'{"a": NaN}', b'{"a": -Infinity}', b"[" * 100_000],
    ids=lambda line: repr(line[:12]),
)
def test_what_is_no_message_is_refused_and_the_next_is_read(raw: tuple[Channel, int], line: bytes) -> None:
    channel, write = raw
    writer = threading.Thread(target=os.write, args=(write, line + b'\n{"next": 1}\n'))
    writer.start()
    with pytest.raises(ProtocolError):
        channel.receive(1)
    assert channel.receive(1) == {"next": 1}
    writer.join()


def test_a_line_without_end_is_refused(raw: tuple[Channel, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_LONGEST_LINE", 1000)
    channel, write = raw
    os.write(write, json.dumps({"text": "x" * 1000}).encode())
    with pytest.raises(ProtocolError, match="exceeds"):
        channel.receive(1)
