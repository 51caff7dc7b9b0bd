"""How far apart two rows may be that a join of streams puts together (KIP-633). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from stateline.model.declared_at import says_where
from stateline.model.java_names import HintsAtConstructor
from stateline_store import InvalidArgumentError

_MILLISECOND = timedelta(milliseconds=1)
_NONE = timedelta(0)


@says_where
@dataclass(frozen=True, slots=True)
class JoinWindows(metaclass=HintsAtConstructor):
    """A row of the left stream meets rows of the right one from `before` earlier to `after` later, both included.
    Both are `difference` unless given. Either may be negative, as long as the span is not empty.

    A row that found no partner leaves a left or outer join when stream time has passed its last possible partner by
    more than `grace`. The stores keep rows for the whole span and the grace. Raises `InvalidArgumentError`.
    """

    difference: timedelta
    before: timedelta | None = field(default=None, kw_only=True)
    after: timedelta | None = field(default=None, kw_only=True)
    grace: timedelta = field(default=_NONE, kw_only=True)

    def __post_init__(self) -> None:
        _check("difference", self.difference, _NONE)
        _check("grace", self.grace, _NONE)
        for name, length in (("before", self.before), ("after", self.after)):
            if length is not None:
                _check(name, length)
        if self.before_ms + self.after_ms < 0:
            raise InvalidArgumentError(
                f"before={self.before}, after={self.after}: no row can be in a window that ends before it begins."
            )

    @property
    def before_ms(self) -> int:
        return (self.difference if self.before is None else self.before) // _MILLISECOND

    @property
    def after_ms(self) -> int:
        return (self.difference if self.after is None else self.after) // _MILLISECOND

    @property
    def size_ms(self) -> int:
        """The whole span, the window size of both stores."""
        return self.before_ms + self.after_ms

    @property
    def grace_ms(self) -> int:
        return self.grace // _MILLISECOND

    @property
    def retention_ms(self) -> int:
        """How long both stores keep a row."""
        return self.size_ms + self.grace_ms


def _check(name: str, length: object, least: timedelta = timedelta.min) -> None:
    if not isinstance(length, timedelta) or length % _MILLISECOND or length < least:
        floor = ", 0 or more," if least == _NONE else ""
        raise InvalidArgumentError(f"{name}={length!r}: a timedelta of whole milliseconds{floor} is accepted.")
