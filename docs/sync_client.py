"""Generate the blocking client from the one for asyncio. `docs/generate.py` writes it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_CLIENT = Path(__file__).parent.parent / "service/stateline/client"
_GENERATED = {"async_client.py": "client.py", "async_transport.py": "sync_transport.py"}
_HEADER = "# Generated from {}: change that file, then run `python docs/generate.py`.\n"
_BLOCKING = [
    (r"`client` is generated from this module\.", "`async_client` is the same for asyncio."),
    (r"\n\n`sync_transport` is generated from this module\.\n", ""),
    (r"for tasks of one event loop", "thread-safe"),
    (r"for asyncio\b(?!\.\"\"\")", "for threads"),
    (r"`async with`", "`with`"),
    (r"\basync (?=def|with|for)", ""),
    (r"\bawait ", ""),
    (r"\bAsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"\bAbstractAsync(?=[A-Z])", "Abstract"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\benter_async_context\b", "enter_context"),
    (r"\basync_transport\b", "sync_transport"),
    (r"\basync_batches\b", "batches"),
    (r"\b(__|)a(exit__|iter__|iter_bytes|read|close|closing)\b", r"\1\2"),
    (r"\basyncio\b(?=$|\.sleep)", "time"),
]


def blocking_modules() -> Iterator[tuple[Path, str]]:
    """Yield each generated file and its text."""
    for source, target in _GENERATED.items():
        text = (_CLIENT / source).read_text(encoding="utf-8")
        for pattern, new in _BLOCKING:
            text = re.sub(pattern, new, text, flags=re.MULTILINE)
        yield _CLIENT / target, _formatted(_HEADER.format(source) + text, target)


def _formatted(text: str, name: str) -> str:
    for command in (["check", "--fix", "--quiet", "--unsafe-fixes"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(_CLIENT / name), "-"]
        text = subprocess.run(ruff, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout
    return text
