"""The HTTP server: `create_app` makes the application, `serve` runs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline.server.main import Listening, create_app, serve, serve_inherited

__all__ = ["Listening", "create_app", "serve", "serve_inherited"]


def __getattr__(name: str) -> Any:
    """Load it when it is first asked for: `start_checks` is asked by processes that need nothing of it."""
    if name in __all__:
        return getattr(importlib.import_module("stateline.server.main"), name)
    raise AttributeError(f"module 'stateline.server' has no attribute {name!r}")
