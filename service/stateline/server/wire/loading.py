"""Load modules that only some answers need at the first such answer, off the event loop."""

from __future__ import annotations

import asyncio
import importlib

_loaded: set[str] = set()


async def loaded(module: str) -> None:
    """Import the module in a thread, and return when it can be imported without a wait. The first import of pyarrow or
    httpx takes some tenths of a second."""
    if module in _loaded:  # `sys.modules` has a module already during its import, which would block the loop
        return
    await asyncio.to_thread(importlib.import_module, module)
    _loaded.add(module)
