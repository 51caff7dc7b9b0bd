"""Keep paths of this machine's files out of answers.

Messages of errors name files, for whoever reads the log. In an answer the directories of this process stand under
another name: `<state.dir>/flights/0_1/rocksdb/totals is damaged`, so that the operator knows which file is meant and a
client learns nothing about the machine. Any other path from the root is `<path>` there: who wrote the message, a
library or another process, need not have known that it would go out.

Every text that an error has made goes through `without_paths` where it leaves: `problems`,
`event_stream.goodbye`, and the members that `state_routes` and `pipelines` fill with one. The directories belong to the
process, as the handlers of its log do: they are hidden before it answers anybody, and never shown again.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

# What a path from the root begins with: what is in the root here, and what is there on most machines; not what the
# API's own paths begin with, which messages name.
_USUAL = frozenset(
    {"bin", "data", "dev", "etc", "home", "lib", "media", "mnt", "opt", "private", "proc", "root", "run", "srv", "sys"}
    | {"tmp", "usr", "var", "Users"}
)
_OURS = frozenset({"", "v1", "docs", "console", "healthz", "readyz", "metrics", "openapi.json"})
_ROOTS = "|".join(map(re.escape, sorted({*_USUAL, *os.listdir("/")} - _OURS)))
# In quotation marks it may have spaces. A `/` behind a word or another path's name is no root.
_PATH = re.compile(
    rf"""(?<=')/(?:{_ROOTS})(?:/[^']*)?(?=')|(?<=")/(?:{_ROOTS})(?:/[^"]*)?(?=")"""
    rf"""|(?:(?<=file://)|(?<![\w./>)~-]))/(?:{_ROOTS})(?![\w-])(?:/[^\s'",:;()<>\[\]]*)?"""
)

_FRAME = re.compile(r'(?<=File ")/[^"\n]*(?=", line \d)')  # of a traceback

_hidden: dict[str, str] = {}


def hide_directory(directory: Path, name: str) -> None:
    """Replace this directory with `name` in all later messages of `without_paths`, however it is written."""
    for form in (directory, directory.absolute(), directory.resolve()):
        if form.name:  # neither the root nor the working directory as such, which would be half of any text
            _hidden[str(form)] = name


def without_paths(error: BaseException | str) -> str:
    """Return the error's message, or this text, as an answer may show it."""
    text = str(error)
    for path in sorted(_hidden, key=len, reverse=True):  # the longest first: one may lie in another
        if path in text:
            text = _replaced(text, path)
    return _PATH.sub("<path>", text)


def trace_without_paths(trace: str) -> str:
    """Return a Python traceback as an answer may show it. A file's name is relative to the directory that Python
    imports it from, such as `flights.py`. Other files keep only their name."""
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
