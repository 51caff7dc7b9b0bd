"""Read the options for the place to read again from, as in Kafka Streams' application reset tool. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Literal

from stateline.serde.iso_times import epoch_ms, iso_time
from stateline_store import InvalidArgumentError

Kind = Literal["earliest", "latest", "offset", "time", "shift"]

_DURATION = re.compile(
    r"P(?=.)(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,3})?)S)?)?"
)


@dataclass(frozen=True, slots=True)
class WhereTo:
    """`value` is an offset, milliseconds since the epoch, or a number to shift by. Otherwise it is 0."""

    kind: Kind = "earliest"
    value: int = 0

    def of(self, first: int, end: int, committed: int | None, at_time: int) -> int:
        """The next offset of a partition, always within these bounds, as in Kafka's tool. `committed` None means the
        first offset. `at_time` is the first offset of at least that time."""
        wanted = {
            "earliest": first,
            "latest": end,
            "offset": self.value,
            "time": at_time,
            "shift": (first if committed is None else committed) + self.value,
        }[self.kind]
        return min(max(wanted, first), end)


def where_to(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
    now_ms: int,
) -> WhereTo:
    """Read the options; the default is the beginning. Raises `InvalidArgumentError` for several at once, and for an
    invalid time or duration."""
    given = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-offset": to_offset is not None,
        "--to-datetime": to_datetime is not None,
        "--by-duration": by_duration is not None,
        "--shift-by": shift_by is not None,
    }
    if len(named := [name for name, is_given in given.items() if is_given]) > 1:
        raise InvalidArgumentError(f"{' and '.join(named)} are different places: give one of them.")
    if to_offset is not None:
        return WhereTo("offset", to_offset)
    if to_datetime is not None:
        return WhereTo("time", _time_ms(to_datetime))
    if by_duration is not None:
        return WhereTo("time", now_ms - _duration_ms(by_duration))
    if shift_by is not None:
        return WhereTo("shift", shift_by)
    return WhereTo("latest" if to_latest else "earliest")


def _time_ms(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        return epoch_ms(iso_time(text, UTC))
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"--to-datetime {text[:60]!r} is no time: write 2026-11-26T09:30:00Z, or milliseconds since the epoch."
        ) from None


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(
            f"--by-duration {text[:60]!r} is no duration: write PT90M for 90 minutes, P1DT12H for a day and a half."
        )
    return int(timedelta(**{unit: float(n) for unit, n in found.groupdict().items() if n}) / timedelta(milliseconds=1))
