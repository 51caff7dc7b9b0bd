"""Modules that only some answers need are loaded when the first of these comes, and not on the event loop."""

from __future__ import annotations

import asyncio
import importlib
import sys


async def loaded(module: str) -> None:
    """Return when the module can be imported at once. pyarrow and httpx take some tenths of a second the first time:
    for that nobody shall wait but who asked."""
    if module not in sys.modules:
        await asyncio.to_thread(importlib.import_module, module)
