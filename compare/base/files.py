"""Files that are written whole or not at all."""

import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from compare.base.interface import Refused

_NO_FILE = "it is not a regular file; allowed: the name of a file"
_OF_THE_SYSTEM = ("/dev", "/proc")
_MOST_LINKS = 40


def write(contents: Mapping[Path, bytes]) -> None:
    """Write all files or none. A reader sees either the old file or the new one.

    Each file is written to a temporary file in its folder and flushed to the disk. Once all are there, they take their
    names. A link's target is written, not the link. Folders must exist.

    Raises:
        Refused: the file system refuses. Every file is then unchanged, and no temporary file stays.
    """
    waiting: dict[Path, Path] = {}
    kept: dict[Path, Path | None] = {}
    target = Path()
    try:
        for named, data in contents.items():
            target = _followed(named)
            if target.exists() and not target.is_file():  # a folder, or a device, which must not be replaced
                raise Refused(f"cannot write {named}: {_NO_FILE}")
            waiting[target] = _beside(target)
            _store(waiting[target], data)
        for target, temporary in waiting.items():
            if len(kept) < len(waiting) - 1:  # nothing comes after the last that could fail
                kept[target] = _copy(target)
            temporary.replace(target)
    except BaseException as error:
        for changed, copy in kept.items():
            _restore(changed, copy)
        if isinstance(error, OSError):
            raise Refused(f"cannot write {target}: {error.strerror or error}") from error
        raise
    finally:
        for temporary in (*waiting.values(), *filter(None, kept.values())):
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _followed(named: Path) -> Path:
    """Return what a link leads to, or the name itself. Links of the system, as /dev/stdout is, are no files' names."""
    target = named
    for _ in range(_MOST_LINKS):
        if not target.is_symlink():
            return target
        if any(Path(os.path.abspath(target)).is_relative_to(each) for each in _OF_THE_SYSTEM):  # noqa: PTH100 -- unfollowed
            raise Refused(f"cannot write {named}: {_NO_FILE}")
        target = target.parent / target.readlink()
    raise Refused(f"cannot write {named}: too many links; allowed: the name of a file")


def _beside(target: Path) -> Path:
    return target.with_name(f".{uuid.uuid4().hex}.tmp")


def _store(path: Path, data: bytes) -> None:
    # Not tempfile: its files are readable by their owner only, and results are there to be shared.
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _copy(target: Path) -> Path | None:
    if not target.exists():
        return None
    copy = _beside(target)
    shutil.copyfile(target, copy)
    return copy


def _restore(target: Path, copy: Path | None) -> None:
    with suppress(OSError):
        if copy is None:
            target.unlink(missing_ok=True)
        else:
            copy.replace(target)
