"""Keys and values as bytes, and back. `Serde` is what one of an application's own has to be."""

from stateline.serde.plain import Serde

__all__ = ["Serde"]
