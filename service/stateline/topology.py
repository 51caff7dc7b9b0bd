"""`Windowing` under its old path. `from stateline import Windowing` is shorter."""

from stateline.model.pipeline import Windowing

__all__ = ["Windowing"]
