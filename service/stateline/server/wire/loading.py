"""Modules that only some answers need are loaded when the first of these comes, and not on the event loop."""

from __future__ import annotations

import asyncio
import importlib

_loaded: set[str] = set()


async def loaded(module: str) -> None:
    """Return when the module can be imported at once. pyarrow and httpx take some tenths of a second the first time:
    for that nobody shall wait but who asked."""
    if module in _loaded:  # `sys.modules` has it already while it is loaded, and who imports it then waits: on the loop
        return
    await asyncio.to_thread(importlib.import_module, module)
    _loaded.add(module)
