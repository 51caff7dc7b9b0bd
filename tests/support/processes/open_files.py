"""The files that this process has open."""

import contextlib
import os
from pathlib import Path


def open_files() -> dict[str, str]:
    """Each file's (or pipe's, or socket's) name → a path to one descriptor of it; "… (deleted)" when it is."""
    found = dict[str, str]()
    for descriptor in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{descriptor}"
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found[os.readlink(path)] = path
    return found


def kept_tables(application: Path) -> dict[str, int]:
    """Each table of this application that was deleted and is open here → its bytes. Others' do not count: what earlier
    tests have left is theirs."""
    sizes, stores = dict[str, int](), f"{application.resolve()}/"
    for name, path in open_files().items():
        if name.startswith(stores) and name.endswith(".sst (deleted)"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                sizes[name] = os.stat(path).st_size
    return sizes
