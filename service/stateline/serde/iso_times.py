"""Read and write times: ISO 8601 text, `datetime`, and milliseconds since the epoch.

Data must name the zone of a time: fields of records, keys, values, lines of files. Options of commands and parameters
of queries may leave it out. They pass `UTC` as the default zone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def iso_time(text: str, default_zone: tzinfo | None = None) -> datetime:
    """Return the time of ISO 8601 text. Raise `InvalidArgumentError`, which shows the text, for other text, and for
    text without a zone or default."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{shown(text)} is neither a number nor a time of ISO 8601") from error
    if at.tzinfo is None and default_zone is None:
        raise InvalidArgumentError(f"{shown(text)} has no zone: write Z, or +02:00, behind it")
    return at if at.tzinfo else at.replace(tzinfo=default_zone)


def epoch_ms(at: datetime) -> int:
    """Return exact milliseconds since the epoch, negative before it. Smaller units are cut off."""
    return (at - EPOCH) // MILLISECOND


def utc_text(at_ms: int) -> str:
    """Return ISO 8601 text in UTC with milliseconds, or the number itself if it is no time of the years 1 to 9999."""
    try:
        return (EPOCH + at_ms * MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(at_ms)
