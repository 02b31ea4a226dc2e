"""Write zip files of a few known members, and read them as if an attacker had made them.

Nothing is extracted to a disk. A member is decompressed only after all names, kinds, sizes and ratios were checked, and
never beyond its stated size. Attacks with such files: Fifield, "A better zip bomb", WOOT 2019.
"""

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from zipfile import ZipInfo

from compare.base.interface import Refused
from compare.base.untrusted import SHORT, SIZE_LIMIT

TOTAL_LIMIT = 3 * SIZE_LIMIT
"""Most bytes of all members together, and of the archive itself."""

RATIO_LIMIT = 200
"""Most bytes that one compressed byte may become. Results reach about 20, deflate can reach 1032."""

_HARMLESS_SIZE = 2**16  # a smaller member may have any ratio
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of the format
_MODE = stat.S_IFREG | 0o644
_UNIX = 3
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_LOCAL_HEADER, _ZIP64_LOCATOR = b"PK\x03\x04", b"PK\x06\x07"
_END = struct.Struct("<4s4H2LH")  # signature, 2 disks, 2 counts, size and place of the directory, comment's length
_HEADER = struct.Struct("<4s5H3L2H")  # signature, version, flags, method, time, date, CRC, 2 sizes, 2 lengths
_END_SIGNATURE = b"PK\x05\x06"
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, ValueError, OverflowError, OSError)
_DIRECTORY_LIMIT = 2**16  # bytes, many for a few short names


def pack(members: Mapping[str, bytes]) -> bytes:
    """Return a compressed archive of the members, sorted by name.

    The same members give the same bytes, except with another version of zlib.
    """
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in sorted(members):
            info = ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system, info.external_attr = _UNIX, _MODE << 16
            archive.writestr(info, members[name])
    return stream.getvalue()


def is_zip(data: bytes) -> bool:
    """Tell whether the bytes begin as a zip file does."""
    return data.startswith(b"PK")


def unpack(data: bytes, allowed: Collection[str], *, total_limit: int | None = None) -> dict[str, bytes]:
    """Return the members of an archive.

    Args:
        data: the archive.
        allowed: the names that members may have.
        total_limit: most bytes of all members together. Default: `TOTAL_LIMIT`.

    Raises:
        Refused: for incomplete zip files, other members (paths, folders and links too), repeated names, encryption,
            compression other than deflate, members that the archive's parts describe differently, and more than
            `SIZE_LIMIT` bytes in a member, `total_limit` in all, or `RATIO_LIMIT`.
    """
    _check_ends(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            _check_members(infos, allowed, len(data), total_limit or TOTAL_LIMIT)
            _check_headers(data, infos)
            return {info.filename: _read(archive, info) for info in infos}
    except _DAMAGED as error:
        raise Refused(f"is damaged: {SHORT.repr(str(error))}; allowed: a whole bundle") from None
    except (NotImplementedError, RuntimeError) as error:
        raise Refused(f"is a zip file of an unsupported kind: {SHORT.repr(str(error))}") from None


def _check_ends(data: bytes) -> None:
    """Check, before anything is parsed, that the archive fills the bytes and that its directory is short."""
    if not data.startswith(_LOCAL_HEADER):
        raise Refused("is not a zip file from its first byte on; allowed: a bundle")
    place = len(data) - _END.size
    signature, *_, directory, start, comment = _END.unpack(data[max(place, 0) :]) if place > 0 else (b"", 0, 0, 0)
    if signature != _END_SIGNATURE or comment or data[place - 20 : place].startswith(_ZIP64_LOCATOR):
        raise Refused("does not end as a zip file without a comment does (truncated?); allowed: a whole bundle")
    if directory > _DIRECTORY_LIMIT or start + directory != place:
        raise Refused("has a directory of its members that is too long or not in its place; allowed: a whole bundle")


def _check_members(infos: list[ZipInfo], allowed: Collection[str], size: int, total_limit: int) -> None:
    if len(infos) > len(allowed):
        raise Refused(f"holds {len(infos)} members; allowed: at most {len(allowed)}")
    seen: set[str] = set()
    for info in infos:
        _check_member(info, allowed, size)
        if info.filename in seen:
            raise Refused(f"holds {info.filename} twice; allowed: once")
        seen.add(info.filename)
    if sum(info.file_size for info in infos) > total_limit:
        raise Refused(f"would become more than {total_limit:,} bytes; allowed: at most that")


def _check_headers(data: bytes, infos: list[ZipInfo]) -> None:
    """Check that the headers before the members say what the directory says, and that nothing lies between members.

    Other programs read a member by its header. They must not find another file than samestep.
    """
    *_, here, all_disks, _, directory, _ = _END.unpack(data[-_END.size :])
    if not here == all_disks == len(infos):
        raise Refused(f"counts {all_disks} members and lists {len(infos)}; allowed: a whole bundle")
    place = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        name, size = info.filename.encode(), info.compress_size
        listed = (_LOCAL_HEADER, info.flag_bits, info.compress_type, info.CRC, size, info.file_size, len(name))
        header = _HEADER.unpack_from(data, place)
        signature, _, flags, method, _, _, *sizes, extra = header
        begin = place + _HEADER.size
        if (signature, flags, method, *sizes) != listed or data[begin : begin + len(name)] != name:
            raise Refused(f"describes {info.filename} in two ways; allowed: a whole bundle")
        if info.header_offset != place or (method == zipfile.ZIP_STORED and size != info.file_size):
            raise Refused(f"has {info.filename} in another place than it says; allowed: a whole bundle")
        place = begin + len(name) + extra + size
    if place != directory:
        raise Refused("holds bytes of no member; allowed: a whole bundle")


def _check_member(info: ZipInfo, allowed: Collection[str], size: int) -> None:
    # The original name, because Python cuts names at a NUL character and replaces other systems' separators.
    if info.orig_filename not in allowed or info.filename != info.orig_filename:
        raise Refused(f"holds {SHORT.repr(info.orig_filename)}; allowed: {', '.join(sorted(allowed))}")
    name, kind = info.filename, stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise Refused(f"{name} in it is a link, a folder or a device; allowed: regular files")
    if info.flag_bits & _ENCRYPTED:
        raise Refused(f"{name} is encrypted; allowed: members without encryption")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused(f"{name} is compressed by method {info.compress_type}; allowed: stored, deflate")
    if info.compress_size > size:
        raise Refused(f"{name} is longer than the whole file; allowed: a whole bundle")
    if info.file_size > SIZE_LIMIT:
        raise Refused(f"{name} would become {info.file_size:,} bytes; allowed: at most {SIZE_LIMIT:,}")
    if info.file_size > max(_HARMLESS_SIZE, RATIO_LIMIT * info.compress_size):
        raise Refused(f"{name} would become more than {RATIO_LIMIT} times as large; allowed: less")


def _read(archive: zipfile.ZipFile, info: ZipInfo) -> bytes:
    with archive.open(info) as stream:
        data = stream.read(info.file_size + 1)
    if len(data) != info.file_size:
        raise Refused(f"{info.filename} does not have its stated length; allowed: {info.file_size:,} bytes")
    return data
