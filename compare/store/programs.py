"""The folder of compiled programs that are kept from run to run. Frameworks load its files as code."""

import os
from pathlib import Path

from compare.store import private_folder


def find_folder(otherwise: Path, store: str | Path | None = None) -> Path:
    """Return the folder for compiled programs of all runs, or `otherwise` if this user can have none.

    `store` is the folder of the store, if the user names one.

    Raises:
        Refused: another user can change the folder.
    """
    try:
        folder = private_folder.make(private_folder.find_root(store) / "programs")
    except (OSError, RuntimeError):  # no home, one that cannot be written to, or a file in its place
        return otherwise
    return folder if os.access(folder, os.W_OK | os.X_OK) else otherwise
