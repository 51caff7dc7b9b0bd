"""The files that this process has open."""

import contextlib
import os


def open_files() -> dict[str, str]:
    """Each file's (or pipe's, or socket's) name → a path to one descriptor of it; "… (deleted)" when it is."""
    found = dict[str, str]()
    for descriptor in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{descriptor}"
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found[os.readlink(path)] = path
    return found
