"""The HTTP server: `create_app` makes the application, `serve` runs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline.server.main import create_app
    from stateline.server.processes import Listening, serve, serve_inherited
    from stateline.server.scan_process import run_scan_process

__all__ = ["Listening", "create_app", "run_scan_process", "serve", "serve_inherited"]
_MODULES = {"create_app": "main", "run_scan_process": "scan_process"}


def __getattr__(name: str) -> Any:
    """Load it at its first use: processes that import `listeners` alone need nothing of it."""
    if name in __all__:
        module = _MODULES.get(name, "processes")
        return getattr(importlib.import_module(f"stateline.server.{module}"), name)
    raise AttributeError(f"module 'stateline.server' has no attribute {name!r}")
