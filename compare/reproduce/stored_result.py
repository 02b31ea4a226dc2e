"""Load a stored result from a result file, a folder with one, or a bundle."""

from pathlib import Path

from compare.base import untrusted
from compare.base.interface import Refused
from compare.reproduce import archive, bundle
from compare.results import consistency, result_file
from compare.results.model import Result

KIND = "a result.json, its folder, or a bundle"


def read(path: Path) -> bytes:
    """Return the bytes of a result file or a bundle. `path` may also be the folder of a result file.

    Raises:
        Refused: the file cannot be read, or is too large for its kind. The message lacks the file's name.
    """
    data = untrusted.read(result_file.find_file(path), archive.TOTAL_LIMIT, KIND)
    if not archive.is_zip(data):
        untrusted.check_size(data)
    return data


def load(path: Path) -> Result:
    """Return the result in a result file, a folder with one, or a bundle. Its verdicts must follow from its figures.

    Raises:
        OfScale: the result is of `samestep scale`.
        Refused: with the file's name, for a file that cannot be read, is no bundle or result, or contradicts itself.
    """
    file = result_file.find_file(path)
    try:
        data = read(file)
        result = bundle.read_result(data) if archive.is_zip(data) else result_file.parse(data)
        consistency.check_verdicts(result)
    except Refused as error:
        raise type(error)(f"{file}: {error}") from None
    return result
