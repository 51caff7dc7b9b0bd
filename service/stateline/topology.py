"""`Windowing`, where applications have found it so far; `from stateline import Windowing` is shorter."""

from stateline.model.pipeline import Windowing

__all__ = ["Windowing"]
