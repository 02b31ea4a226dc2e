"""Files that an attacker would write, from a seed, and readers of samestep that meet each in a process of its own.

The first files are the worst for each limit: without the limit, they break a promise. The others are random.

Run it as `python -m tests.attack.hostile_files SEED COUNT`. It prints a line for each file that breaks a promise: a
reader must end within 10 s and 512 MiB. It accepts the file or refuses it with a short message.
"""

import functools
import io
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from compare.base import workloads
from compare.base.interface import Refused
from compare.cli import app, pair_options
from compare.data import datasets, photographs
from compare.reproduce import bundle
from compare.studies import campaign_file
from tests.unit import result_factory

SECONDS, MEBIBYTES, LONGEST_LINE = 10, 512, 1100
_MARK = "PAYLOAD"
_NAUGHTY = (
    *(
        "../../../etc/passwd",
        "\x1b[2J\x1b]0;x\x07",
        "<script>alert(1)</script>",
        "\\input{/etc/passwd}",
        "=cmd|' /C x'!A0",
    ),
    *("%s%n{0}", "\u202e\u0000", "\ud800", "'; DROP TABLE x", "NaN", "-0", "jax#2", "a" * 20_000, "\n" * 500),
)
_NUMBERS = (0, -1, 2**63, -(2**63), 10**400, 1e308, -1e308, 1e-320, 0.1, True, None)


def make_result(source: random.Random) -> bytes:
    """Return a result file with one to four faults."""
    value = result_factory.make_result()
    for _ in range(source.randint(1, 3)):
        _spoil_json(source, value)
    data = json.dumps(value).encode()
    if source.random() < 0.5:
        data = data.replace(f'"{_MARK}"'.encode(), _make_payload(source))
    return _spoil_bytes(source, data) if source.random() < 0.4 else data


def make_bundle(source: random.Random) -> bytes:
    """Return a bundle with a fault in its bytes, its members or its headers."""
    data = bundle.make(json.dumps(result_factory.make_result()).encode())
    match source.randrange(4):
        case 0:
            return _spoil_bytes(source, data)
        case 1:
            return _pack_anew(source, bundle.read_members(data))
        case 2:  # a field of a header or of the directory
            places = [at for at in range(len(data) - 4) if data[at : at + 2] == b"PK"]
            at = source.choice(places) + source.randrange(4, 46)
            return data[:at] + source.randbytes(source.choice((1, 2, 4))) + data[at + 4 :]
        case _:
            stream = io.BytesIO()
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
                for name in source.sample(sorted(bundle.MEMBERS), 3):
                    archive.writestr(name, bytes(source.choice((10**5, 10**7, 7 * 10**7))))
            return stream.getvalue()


def make_weights_map(source: random.Random) -> bytes:
    """Return a weights map with wrong types, long names or broken JSON."""
    pairs: dict[str, Any] = {f"layers.{n}.weight": f"Dense_{n}.kernel" for n in range(source.randrange(50))}
    _spoil_json(source, pairs)
    data = json.dumps(pairs).encode().replace(f'"{_MARK}"'.encode(), _make_payload(source))
    return _spoil_bytes(source, data) if source.random() < 0.3 else data


def make_idx(source: random.Random) -> bytes:
    """Return images in MNIST's format with a wrong header or length."""
    shape = (source.choice((0, 5, 12, 2**31)), source.choice((28, 0, 2**16)), source.choice((28, 1, 2**32 - 1)))
    header = struct.pack(
        ">HBB3I", source.choice((0, 0, 1)), source.choice((8, 8, 13)), source.choice((3, 3, 1, 255)), *shape
    )
    return header + source.randbytes(source.choice((0, 784, 12 * 784)))


def make_image(source: random.Random) -> bytes:
    """Return a picture with damaged bytes, or one that claims to be huge."""
    stream = io.BytesIO()
    kind = source.choice(("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"))
    Image.new("RGB", (40, 30), (source.randrange(256), 1, 2)).save(stream, kind)
    data = stream.getvalue()
    if kind == "PNG" and source.random() < 0.3:
        return data[:16] + struct.pack(">II", 2**30, source.choice((2**30, 3))) + data[24:]
    return _spoil_bytes(source, data)


def make_campaign(source: random.Random) -> bytes:
    """Return the file of a campaign with faults in its text."""
    lines = ['name = "x"', "[defaults]", 'workload = "digits-cnn"', "[grid]", "seed = [0, 1]", "[[comparison]]"]
    lines += [f'contenders = ["torch", {json.dumps(source.choice(_NAUGHTY))}]']
    source.shuffle(lines)
    expensive = (
        "a = " + "[" * 9000 + "]" * 900,
        "a" + ".a" * 5 * 10**5 + " = 1",
        "[grid]\nepochs = [" + "1, " * 3000 + "]",
    )
    lines += [source.choice(expensive)] if source.random() < 0.3 else []
    return _spoil_bytes(source, "\n".join(lines * source.choice((1, 1, 300))).encode("utf-8", "surrogatepass"))


def _spoil_json(source: random.Random, value: Any) -> None:
    """Change one place somewhere in a JSON value."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = source.choice(keys)
        if isinstance(value[key], (dict, list)) and value[key] and source.random() < 0.85:
            value = value[key]
            continue
        match source.randrange(6):
            case 0:
                value[key] = source.choice(_NAUGHTY)
            case 1:
                value[key] = source.choice(_NUMBERS)
            case 2 if isinstance(value, dict):
                del value[key]
            case 3 if isinstance(value, dict):
                value[source.choice(_NAUGHTY)] = value[key]
            case 4:
                value[key] = [value[key]] * source.choice((0, 2, 1000))
            case _:
                value[key] = _MARK
        return


def _make_payload(source: random.Random) -> bytes:
    """Return the bytes of a JSON value that is expensive or not allowed."""
    return source.choice(
        (
            lambda: b"NaN",
            lambda: b"1e999",
            lambda: b"9" * source.choice((400, 5000, 10**6)),
            lambda: b"[" * 10**5 + b"]" * 10**5,
            lambda: b'{"a":' * 500 + b"1" + b"}" * 500,
            lambda: b'"' + b"x" * source.choice((10**4 + 1, 10**6, 5 * 10**7)) + b'"',
            lambda: b'{"' + b"k" * source.choice((1001, 10**6, 5 * 10**7)) + b'": "v"}',
            lambda: b"[" + b"0," * source.choice((10**5, 49 * 10**5)) + b"0]",
            lambda: b"[" + b'"' + b"\\u0041" * 10**5 + b'"' + b"]",
            lambda: b'{"a": 1, "a": 2}',
        )
    )()


def _spoil_bytes(source: random.Random, data: bytes) -> bytes:
    spoilt = bytearray(data)
    match source.randrange(4):
        case 0:
            del spoilt[source.randrange(len(spoilt) + 1) :]
        case 1:
            for _ in range(source.randint(1, 20)):
                spoilt[source.randrange(len(spoilt))] = source.randrange(256)
        case 2:
            at = source.randrange(len(spoilt))
            spoilt[at:at] = source.randbytes(source.choice((1, 100, 10**6)))
        case _:
            spoilt[:0] = source.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\0" * 10, b"PK\x03\x04", b"#!/bin/sh\n"))
    return bytes(spoilt)


def _pack_anew(source: random.Random, members: Mapping[str, bytes]) -> bytes:
    stream, method = io.BytesIO(), source.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            if source.random() < 0.8:
                archive.writestr(name, _spoil_bytes(source, content) if source.random() < 0.3 else content)
        if source.random() < 0.5:
            name = source.choice(("../x", "/etc/passwd", "run.sh", "result.json/", "RESULT.JSON", "a\x1bb"))
            archive.writestr(name, b"x")
    return stream.getvalue()


def _call(*arguments: str) -> None:
    """Run a command line, and check its exit code."""
    sys.argv, code = ["samestep", *arguments], None
    try:
        app.main()
    except SystemExit as end:
        code = end.code
    assert code in (None, 0, 1, 2), f"exit code {code}"


def _read_map(path: Path) -> None:
    pair = {"jax": "model.py:jax", "torch": "model.py:torch", "image": "8x8x1", "classes": 10}
    pair_options.make_pair({**pair, "weights_map": path})


def _read_idx(path: Path) -> None:
    for part in ("train", "t10k"):
        for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            path.with_name(f"{part}-{name}").write_bytes(path.read_bytes())
    datasets.load(workloads.WORKLOADS["mnist-cnn"], folder=str(path.parent), seed=0, batch_size=2)


def _read_campaign(path: Path) -> None:
    campaign_file.read(path, pair_options.make_pair)


Maker = Callable[[random.Random], bytes]
Reader = Callable[[Path], object]
KINDS: Mapping[str, tuple[Maker, str, tuple[Reader, ...]]] = {
    "result": (
        make_result,
        "result.json",
        (
            lambda path: _call("report", str(path), "--latex", str(path.with_suffix(".tex"))),
            lambda path: _call("report", str(path), "--markdown", str(path.with_suffix(".md"))),
            lambda path: _call("bundle", str(path), "--out", str(path.with_suffix(".zip"))),
            lambda path: _call("diff", str(path), str(path)),
        ),
    ),
    "bundle": (
        make_bundle,
        "bundle.zip",
        (lambda path: _call("verify", str(path)), lambda path: _call("report", str(path))),
    ),
    "weights map": (make_weights_map, "map.json", (_read_map,)),
    "IDX": (make_idx, "images", (_read_idx,)),
    "image": (make_image, "image.png", (photographs.read,)),
    "campaign": (make_campaign, "campaign.toml", (_read_campaign,)),
}
_WEIGHTS = (10, 6, 2, 2, 2, 2)


def _make_result_with(payload: bytes) -> bytes:
    """Return a result in which a text of the report's head is another JSON value."""
    value = result_factory.make_result() | {"id": _MARK}
    return json.dumps(value).encode().replace(f'"{_MARK}"'.encode(), payload)


def _make_bomb() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("result.json", b"[" * 6 * 10**8)
    return stream.getvalue()


def _make_huge_image() -> bytes:
    stream = io.BytesIO()
    Image.new("L", (13_000, 13_000)).save(stream, "PNG")
    return stream.getvalue()


WORST: Sequence[tuple[str, int, Callable[[], bytes]]] = (
    ("result", 0, lambda: _make_result_with(b'"' + b"x" * 5 * 10**7 + b'"')),
    ("result", 0, lambda: _make_result_with(b"[" + b"[]," * 20_000_000 + b"0]")),
    ("result", 1, lambda: _make_result_with(b"9" * 10**6)),
    ("result", 1, lambda: _make_result_with(b'"' + b"x" * 7 * 10**7 + b'"')),
    ("weights map", 0, lambda: b'{"' + b"k" * 62 * 10**6 + b'": "v"}'),
    ("bundle", 0, _make_bomb),
    ("image", 0, _make_huge_image),
    ("campaign", 0, lambda: b"a" + b".a" * 5 * 10**5 + b" = 1"),
)
"""The kind of a file, the place of its reader, and the file."""


def _meet(reader: Reader, path: Path) -> None:
    """Read a file in this process, and raise if that ends in another way than by a short message."""
    output, errors = io.StringIO(), io.StringIO()
    message = ""
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            reader(path)
        except Refused as refusal:
            message = str(refusal)
    lines = [*errors.getvalue().splitlines(), *message.splitlines()]
    assert not any("Traceback" in line for line in lines), errors.getvalue()
    assert all(len(line) < LONGEST_LINE for line in lines), f"a message of {max(map(len, lines))} characters"


def attack(seed: int, number: int) -> str | None:
    """Make one file, let its readers meet it, and return in words which promise was broken, or None."""
    source = random.Random(f"{seed}/{number}")
    if number < len(WORST):
        name, place, write = WORST[number]
        _, file, readers = KINDS[name]
        reader = readers[place]
    else:
        name = source.choices(list(KINDS), _WEIGHTS)[0]
        make, file, readers = KINDS[name]
        write, reader = functools.partial(make, source), source.choice(readers)
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    try:
        path = folder / file
        path.write_bytes(write())
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _end_child(reader, path, folder / "broken")
        _, status, usage = os.wait4(child, 0)
        seconds, size = time.monotonic() - start, usage.ru_maxrss / 1024
        cpu = usage.ru_utime + usage.ru_stime
        broken = [(folder / "broken").read_text()] if (folder / "broken").exists() else []
        broken += [f"took {seconds:.0f} s"] if min(seconds, cpu) > SECONDS or os.WIFSIGNALED(status) else []
        broken += [f"took {size:.0f} MiB"] if size > MEBIBYTES else []
        return f"{name} {seed}/{number}: {'; '.join(broken)}" if broken else None
    finally:
        shutil.rmtree(folder)


def _end_child(reader: Reader, path: Path, broken: Path) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(6 * SECONDS)  # for a busy machine: the parent judges processor time
    os.chdir(path.parent)
    try:
        _meet(reader, path)
    except BaseException:
        broken.write_text(traceback.format_exc()[-1500:])
    os._exit(0)


def main() -> None:
    """Attack with files by seed, and print what broke."""
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in ("bundle", "diff", "help", "prepared_run", "report", "verify"):  # once, not in each child
        import_module(f"compare.cli.{name}")
    import_module("compare.report.formats")
    broken = [message for number in range(count) if (message := attack(seed, number))]
    print(*broken, f"{count} files from seed {seed}: {len(broken)} broke a promise", sep="\n")  # noqa: T201 -- for make
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
