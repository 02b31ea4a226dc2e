"""Load a stored result from a result file, a folder with one, or a bundle."""

from pathlib import Path

from compare.base import untrusted
from compare.base.interface import Refused
from compare.reproduce import archive, bundle, collection
from compare.results import consistency, result_file
from compare.results.model import Result

KIND = result_file.ANY_KIND


def read(path: Path) -> bytes:
    """Return the bytes of a result file or a bundle. `path` may also be the folder of a result file.

    Raises:
        Refused: the file cannot be read, or is too large for its kind. The message lacks the file's name.
    """
    data = untrusted.read(result_file.find_file(path), collection.TOTAL_LIMIT, KIND)
    if not archive.is_zip(data):
        if path.suffix == ".zip":
            raise Refused("is no zip file; allowed: a bundle")
        untrusted.check_size(data)
    elif len(data) > archive.TOTAL_LIMIT and not collection.is_collection(data):
        raise Refused(f"is too large; allowed: at most {archive.TOTAL_LIMIT:,} bytes")
    return data


def load(path: Path) -> Result:
    """Return the result in a result file, a folder with one, or a bundle. Its verdicts must follow from its figures.

    Raises:
        OfScale: the result is of `samestep scale`.
        Refused: with the file's name, for a file that cannot be read, is no bundle or result, or contradicts itself.
            Also for a bundle of several results.
    """
    file, results = result_file.find_file(path), load_all(path)
    if len(results) != 1:
        raise Refused(f"{file}: holds {len(results)} results; allowed: one")
    return results[0]


def load_all(path: Path) -> list[Result]:
    """Return the results in a file of `load`, or in a bundle of several results.

    Raises:
        OfScale, Refused: as `load`.
    """
    file = result_file.find_file(path)
    try:
        return [_check(each) for each in split(read(file))]
    except Refused as error:
        raise type(error)(f"{file}: {error}") from None


def split(data: bytes) -> list[bytes]:
    """Return a bundle of several results as one bundle for each, and other data alone."""
    return collection.read_bundles(data) if collection.is_collection(data) else [data]


def _check(data: bytes) -> Result:
    result = bundle.read_result(data) if archive.is_zip(data) else result_file.parse(data)
    consistency.check_verdicts(result)
    return result
