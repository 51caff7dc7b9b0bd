"""Windows over the records of a key, by their timestamps: what `GroupedStream.windowed_by` takes. Pure.

Time is stream time: the largest timestamp that the aggregation was given, of one partition, never a clock. A record
that comes later than `grace` after its window's end is left out and counted. Lengths are whole milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from stateline.model.declared_at import says_where
from stateline.model.java_names import HintsAtConstructor
from stateline_store import InvalidArgumentError

_MILLISECOND = timedelta(milliseconds=1)
_NONE = timedelta(0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOREVER_MS = 2**63 - 1
"""The size and retention of unlimited windows, Kafka Streams' largest time."""


@dataclass(frozen=True, slots=True)
class Windows(metaclass=HintsAtConstructor):
    """`grace` is how late a record may come after the end of its window."""

    grace: timedelta = field(default=_NONE, kw_only=True)

    def __post_init__(self) -> None:
        for each in fields(self):
            _checked(each.name, getattr(self, each.name), positive=each.name != "grace")

    @property
    def grace_ms(self) -> int:
        return self.grace // _MILLISECOND


@dataclass(frozen=True, slots=True)
class _WindowsOfASize(Windows):
    size: timedelta

    @property
    def size_ms(self) -> int:
        return self.size // _MILLISECOND

    @property
    def advance_ms(self) -> int:
        """How far apart two windows begin: one size, unless it is said."""
        return self.size_ms

    @property
    def least_retention_ms(self) -> int:
        """For how long a store must keep them at least, after the newest window's start."""
        return self.size_ms + self.grace_ms

    @property
    def closed_after_ms(self) -> int:
        """A window is closed, and final, when stream time is this much after its start."""
        return self.size_ms + self.grace_ms


@says_where
@dataclass(frozen=True, slots=True)
class TumblingWindows(_WindowsOfASize):
    """Windows of this size, side by side: each record is in one. They begin at multiples of the size since 1970; the
    end is not part of a window. Raises `InvalidArgumentError` for a size that is not positive, a negative grace."""


@says_where
@dataclass(frozen=True, slots=True)
class HoppingWindows(_WindowsOfASize):
    """Windows of this size that begin every `advance`: each record is in size / advance of them, rounded up. They begin
    at multiples of the advance since 1970; the end is not part of a window.

    Raises `InvalidArgumentError` for lengths that are not positive, an advance above the size, a negative grace.
    """

    advance: timedelta

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        if self.advance > self.size:
            raise InvalidArgumentError(
                f"advance={self.advance} is more than the size, {self.size}: records between windows would be lost."
            )

    @property
    def advance_ms(self) -> int:
        """How far apart two windows begin."""
        return self.advance // _MILLISECOND


@says_where
@dataclass(frozen=True, slots=True)
class SlidingWindows(Windows):
    """A window for each different set of records of a key that lie at most `difference` apart: those that end with a
    record, and those that begin right after one. Both ends are part of a window.

    Raises `InvalidArgumentError` for a difference that is not positive, and a negative grace.
    """

    difference: timedelta

    @property
    def size_ms(self) -> int:
        """From a window's start to its end, which is part of it."""
        return self.difference // _MILLISECOND

    @property
    def least_retention_ms(self) -> int:
        """For how long a store must keep them at least: a late record asks for those two differences before it."""
        return 2 * self.size_ms + self.grace_ms

    @property
    def closed_after_ms(self) -> int:
        """A window is closed, and final, when stream time is this much after its start."""
        return self.size_ms + self.grace_ms + 1


@says_where
@dataclass(frozen=True, slots=True)
class SessionWindows(Windows):
    """Sessions: records of a key with at most `gap` between one and the next. A session is from its first record to its
    last one, both included; one that a record joins to another becomes one with it.

    Raises `InvalidArgumentError` for a gap that is not positive, and a negative grace.
    """

    gap: timedelta

    @property
    def gap_ms(self) -> int:
        return self.gap // _MILLISECOND

    @property
    def least_retention_ms(self) -> int:
        """For how long a store must keep them at least, after the newest session's end."""
        return self.gap_ms + self.grace_ms

    @property
    def closed_after_ms(self) -> int:
        """A session is closed, and final, when stream time is this much after its end."""
        return self.gap_ms + self.grace_ms + 1


@says_where
@dataclass(frozen=True, slots=True)
class UnlimitedWindows(Windows):
    """One window for each key, from `start` on, which never ends. `start` is a datetime with a zone, by default 1970.
    Earlier records are in no window. The store keeps the windows for ever.

    Raises `InvalidArgumentError` for a time without a zone or before 1970, and for a grace: no record can be late.
    """

    start: datetime = _EPOCH

    def __post_init__(self) -> None:
        if not isinstance(self.start, datetime) or self.start.tzinfo is None or self.start < _EPOCH:
            raise InvalidArgumentError(f"start={self.start!r}: a datetime with a zone, 1970 or later, is accepted.")
        if self.grace != _NONE:
            raise InvalidArgumentError(f"grace={self.grace!r}: an unlimited window never ends. Leave the grace out.")

    @property
    def start_ms(self) -> int:
        return (self.start - _EPOCH) // _MILLISECOND

    @property
    def size_ms(self) -> int:
        return FOREVER_MS

    @property
    def closed_after_ms(self) -> int:
        """It never closes: no stream time is that much after its start."""
        return FOREVER_MS + 1


TimeWindows: TypeAlias = TumblingWindows | HoppingWindows | UnlimitedWindows
AnyWindows: TypeAlias = TimeWindows | SlidingWindows | SessionWindows


@dataclass(frozen=True, slots=True)
class UntilWindowCloses:
    """The result of `until_window_closes`."""


def until_window_closes() -> UntilWindowCloses:
    """Have `WindowedTable.suppress` emit each window once it is final (`Suppressed.untilWindowCloses`)."""
    return UntilWindowCloses()


@dataclass(frozen=True, slots=True)
class OnWindowClose:
    """The result of `on_window_close`."""


def on_window_close() -> OnWindowClose:
    """Have `WindowedStream.emit_strategy` emit each window once it is final (`EmitStrategy.onWindowClose`)."""
    return OnWindowClose()


@dataclass(frozen=True, slots=True)
class UntilTimeLimit:
    """The result of `until_time_limit`."""

    wait: timedelta

    @property
    def wait_ms(self) -> int:
        return self.wait // _MILLISECOND


def until_time_limit(wait: timedelta) -> UntilTimeLimit:
    """Have `Table.suppress` hold back each key's changes for so long (`Suppressed.untilTimeLimit`), in stream time.
    Raises `InvalidArgumentError` unless it is 0 or more."""
    _checked("until_time_limit", wait)
    return UntilTimeLimit(wait)


def refuse_unlimited(what: str, windows: AnyWindows) -> None:
    """Raise `InvalidArgumentError` for windows that never end, and so have no final value."""
    if isinstance(windows, UnlimitedWindows):
        raise InvalidArgumentError(f"{what}: {windows} never end, so nothing would be emitted. Use .to_stream().")


def retention_of(
    windows: SessionWindows | SlidingWindows | _WindowsOfASize, retention: timedelta | None, store: str
) -> timedelta:
    """How long the store keeps them: as given, else as short as it may be. Raises `InvalidArgumentError` for less."""
    least = timedelta(milliseconds=windows.least_retention_ms)
    if retention is None:
        return least
    _checked("retention", retention)
    if retention < least:
        raise InvalidArgumentError(
            f"retention={retention} of store {store!r}: {windows} need at least {least}, or records within the grace "
            "would find their windows gone."
        )
    return retention


def _checked(name: str, length: object, *, positive: bool = False) -> None:
    if isinstance(length, timedelta) and not length % _MILLISECOND and length >= (_MILLISECOND if positive else _NONE):
        return
    least = "more than 0" if positive else "0 or more"
    raise InvalidArgumentError(f"{name}={length!r}: a timedelta of whole milliseconds, {least}, is accepted.")
