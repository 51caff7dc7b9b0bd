"""The names of an application's declarations with their lines, so that a clash can name both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias

from stateline.model.declared_at import SourceLine, here, placed
from stateline_store import CallerError, TopologyError

Named: TypeAlias = Literal["topic", "store", "global table", "processor", "step", "punctuation", "pipeline"]

# What cannot have the name of the other.
_TOGETHER: dict[Named, Named] = {"global table": "store", "punctuation": "processor", "step": "processor"}
_DIRECTORIES = ("store", "pipeline")  # the names of those are names of directories


class _Taken(NamedTuple):
    what: Named
    name: str
    note: str
    place: SourceLine


class Names:
    """Not thread-safe, as `Declarations`."""

    def __init__(self) -> None:
        self._taken: dict[tuple[Named, str], _Taken] = {}

    def take(self, what: Named, name: str, note: str = "") -> None:
        """Note that the name is declared here, if it is new. `note` tells others that want the name what has it."""
        self._taken.setdefault(_key(what, name), _Taken(what, name, note, here()))

    def place(self, what: Named, name: str) -> SourceLine:
        return self._taken[_key(what, name)].place

    def refuse_taken(self, what: Named, name: str) -> None:
        """Raise `TopologyError`, with the earlier line, if the name is taken."""
        taken = self._taken.get(_key(what, name))
        if taken is None:
            return
        if taken.what == "step":
            raise TopologyError(
                f"The step name {name!r} is used in {taken.place} already: give one of them another name."
            )
        said = f"{taken.what.capitalize()} {taken.name!r} is declared in {taken.place}, already{taken.note}"
        if taken.name != name:
            raise TopologyError(
                f"{said}, and {name!r} differs from that in the case of letters alone: some file systems, as that of "
                "macOS, have one directory for both. Give one of them another name."
            )
        raise TopologyError(f"{said}: give one of them another name.")

    @contextmanager
    def at(self, what: Named, name: str) -> Iterator[None]:
        """Raise errors of the block with the line of this declaration at the end."""
        try:
            yield
        except CallerError as error:
            placed(error, self.place(what, name))
            raise


def _key(what: Named, name: str) -> tuple[Named, str]:
    kind = _TOGETHER.get(what, what)
    return kind, name.casefold() if kind in _DIRECTORIES else name
