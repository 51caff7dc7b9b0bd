"""Says where the methods of `Table` are to one who looks for them at the declaration of a table. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stateline.model.java_names import python_name

METHODS_OF_TABLES = frozenset(
    {
        "filter", "filter_not", "group_by", "join", "left_join", "map_values", "outer_join", "suppress", "to_stream",
        "transform_values",
    }
)  # fmt: skip


class HasNoMethodsOfTables:
    """A declaration whose table is made by `App.ktable`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # else mypy would take any attribute to exist

        def __getattr__(self, name: str) -> object:
            """Raise `AttributeError`. For a method of `Table`, it says how to get the table."""
            method = python_name(name)
            cure = f": call app.ktable(…) of it, then .{method}(…)" if method in METHODS_OF_TABLES else ""
            raise AttributeError(f"A {type(self).__name__} has no attribute {name!r}{cure}", name=name, obj=self)
