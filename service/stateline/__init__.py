"""Stateline: interactive queries for stream state.

What an application's module needs comes from here; the rest of the package runs it.

    from stateline import App, InputRecord, Output, StoreView, serdes, stores
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline import serdes, stores
    from stateline.app import App
    from stateline.store_definition import StoreDefinition
    from stateline.store_views import SessionView, StoreView, VersionedView, WindowView
    from stateline.streams.windows import (
        HoppingWindows,
        SessionWindows,
        SlidingWindows,
        TumblingWindows,
        until_window_closes,
    )
    from stateline.topology import Topic
    from stateline.worker.records import InputRecord, Output

__all__ = [
    "App",
    "HoppingWindows",
    "InputRecord",
    "Output",
    "SessionView",
    "SessionWindows",
    "SlidingWindows",
    "StoreDefinition",
    "StoreView",
    "Topic",
    "TumblingWindows",
    "VersionedView",
    "WindowView",
    "serdes",
    "stores",
    "until_window_closes",
]
__version__ = "0.1.0"

_HOMES = {
    "App": "stateline.app",
    "InputRecord": "stateline.worker.records",
    "Output": "stateline.worker.records",
    "StoreDefinition": "stateline.store_definition",
    "StoreView": "stateline.store_views",
    "VersionedView": "stateline.store_views",
    "SessionView": "stateline.store_views",
    "WindowView": "stateline.store_views",
    "Topic": "stateline.topology",
    "TumblingWindows": "stateline.streams.windows",
    "HoppingWindows": "stateline.streams.windows",
    "SlidingWindows": "stateline.streams.windows",
    "SessionWindows": "stateline.streams.windows",
    "until_window_closes": "stateline.streams.windows",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for, so that `stateline --help` loads none of them."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("serdes", "stores"):
        return importlib.import_module(f"stateline.{name}")
    raise AttributeError(f"module 'stateline' has no attribute {name!r}")
