"""Stateline: interactive queries for stream state.

An application's module imports all its names from here. The rest of the package runs it.

    from stateline import App, InputRecord, Output, StoreView, serdes, stores
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline import serdes, stores
    from stateline.dsl.app import App
    from stateline.model.join_windows import JoinWindows
    from stateline.model.pipeline import Windowing
    from stateline.model.store_definition import StoreDefinition
    from stateline.model.topic import Topic
    from stateline.model.windows import (
        HoppingWindows,
        SessionWindows,
        SlidingWindows,
        TumblingWindows,
        UnlimitedWindows,
        on_window_close,
        until_time_limit,
        until_window_closes,
    )
    from stateline.processing.processor_context import ProcessorContext
    from stateline.processing.records import InputRecord, Output
    from stateline.processing.store_views import SessionView, StoreView, VersionedView, WindowView

__all__ = [
    "App",
    "HoppingWindows",
    "InputRecord",
    "JoinWindows",
    "Output",
    "ProcessorContext",
    "SessionView",
    "SessionWindows",
    "SlidingWindows",
    "StoreDefinition",
    "StoreView",
    "Topic",
    "TumblingWindows",
    "UnlimitedWindows",
    "VersionedView",
    "WindowView",
    "Windowing",
    "on_window_close",
    "serdes",
    "stores",
    "until_time_limit",
    "until_window_closes",
]
__version__ = "0.1.0"

_NAMES = {
    "dsl.app": "App",
    "model.join_windows": "JoinWindows",
    "model.pipeline": "Windowing",
    "model.store_definition": "StoreDefinition",
    "model.topic": "Topic",
    "model.windows": "HoppingWindows SessionWindows SlidingWindows TumblingWindows UnlimitedWindows on_window_close "
    "until_time_limit until_window_closes",
    "processing.processor_context": "ProcessorContext",
    "processing.records": "InputRecord Output",
    "processing.store_views": "SessionView StoreView VersionedView WindowView",
}
_HOMES = {name: f"stateline.{module}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for, so that `stateline --help` loads none of them."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("serdes", "stores"):
        return importlib.import_module(f"stateline.{name}")
    from stateline.model.java_names import CLASSES

    if name in CLASSES:  # Python drops the text of an AttributeError in `from stateline import …`
        raise ImportError(f"stateline has no {name}: use {CLASSES[name]}.", name=name)
    raise AttributeError(f"module 'stateline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
