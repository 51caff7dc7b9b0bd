"""Keep paths of this machine's files out of answers.

Messages of errors name files, for readers of the log. Answers replace known directories by names:
`<state.dir>/flights/0_1/rocksdb/totals is damaged`. The operator then knows the file, and the client learns nothing
about the machine. Any other absolute path becomes `<path>`, also in messages of libraries and other processes.

Every text of an error passes through `without_paths` before it leaves the process: in `problems` and
`event_stream.goodbye`, and in members of `state_routes` and `pipelines`. Hidden directories belong to the process. They
are registered before its first answer, and stay hidden.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

# First names of absolute paths: those in this machine's root, and those of most machines. The API's own paths are left
# out, because messages name them.
_USUAL = frozenset(
    {"bin", "data", "dev", "etc", "home", "lib", "media", "mnt", "opt", "private", "proc", "root", "run", "srv", "sys"}
    | {"tmp", "usr", "var", "Users"}
)
_OURS = frozenset({"", "v1", "mcp", "docs", "console", "healthz", "readyz", "metrics", "openapi.json"})
_ROOTS = "|".join(map(re.escape, sorted({*_USUAL, *os.listdir("/")} - _OURS)))
# In quotation marks a path may have spaces. A `/` behind a word or another path's name is no root.
_PATH = re.compile(
    rf"""(?<=')/(?:{_ROOTS})(?:/[^']*)?(?=')|(?<=")/(?:{_ROOTS})(?:/[^"]*)?(?=")"""
    rf"""|(?:(?<=file://)|(?<![\w./>)~-]))/(?:{_ROOTS})(?![\w-])(?:/[^\s'",:;()<>\[\]]*)?"""
)

_FRAME = re.compile(r'(?<=File ")/[^"\n]*(?=", line \d)')  # of a traceback

_hidden: dict[str, str] = {}


def hide_directory(directory: Path, name: str) -> None:
    """Replace this directory with `name` in all later messages of `without_paths`, however it is written."""
    for form in (directory, directory.absolute(), directory.resolve()):
        if form.name:  # not `/` or `.`, which any text has
            _hidden[str(form)] = name


def without_paths(error: BaseException | str, given: str = "") -> str:
    """Return the error's message, or this text, with names instead of paths. Paths in the text that the caller has
    `given` stay as they are."""
    text = str(error)
    for path in sorted(_hidden, key=len, reverse=True):  # longest first: one may contain another
        if path in text and not (path.startswith("/") and path in given):
            text = _replaced(text, path)
    return _PATH.sub(lambda found: found[0] if found[0].rstrip(".…") in given else "<path>", text)


def trace_without_paths(trace: str) -> str:
    """Return a Python traceback without paths. A file's name becomes relative to its folder in `sys.path`, such as
    `flights.py`. Other files keep only their last name."""
    roots = [root for root in map(os.path.abspath, {*sys.path, os.getcwd()}) if root != os.sep]
    roots.sort(key=len, reverse=True)

    def shown(frame: re.Match[str]) -> str:
        root = next((root for root in roots if frame[0].startswith(root + os.sep)), None)
        return f"<path>/{os.path.basename(frame[0])}" if root is None else os.path.relpath(frame[0], root)

    return without_paths(_FRAME.sub(shown, trace))


def _replaced(text: str, path: str) -> str:
    # A relative one may be a word of the message, the end of another name, or of another path.
    before, after = ("", r"(?![\w-])") if path.startswith("/") else (r"(?<![\w./-])", "(?=/)")
    return re.sub(f"{before}{re.escape(path)}{after}", lambda _: _hidden[path], text)
