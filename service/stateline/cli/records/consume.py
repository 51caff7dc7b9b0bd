"""`stateline consume`: show records of topics as lines. It joins no group and commits nothing."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TextIO

from stateline.cli.records.record_json import FORMATS, Format
from stateline.cli.records.record_lines import RecordLines
from stateline.cli.target import word_of
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.dsl.app import App
from stateline.log.interface import Admin, IsolationLevel, Log, Record
from stateline.serde.binding import looking_up
from stateline.serde.iso_times import epoch_ms, iso_time
from stateline.serde.plain import shown
from stateline_store import DoesNotExistError, InvalidArgumentError, TopicPartition
from stateline_store.clock import now_ms

_POLL_RECORDS = 1_000
_POLL_S = 0.2
_ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")

_AGO = re.compile(r"-(\d{1,12})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ACCEPTED = "earliest, latest, an offset, a time of ISO 8601 with a zone or a duration ago as in -15m is accepted."


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A word, an offset, or a time in milliseconds. One of the three is set."""

    word: str | None = None
    offset: int | None = None
    time_ms: int | None = None

    def offset_in(self, admin: Admin, partition: TopicPartition, first: int, end: int) -> int:
        if self.word is not None:
            return first if self.word == "earliest" else end
        if self.offset is not None:
            return self.offset
        assert self.time_ms is not None, "one of the three is given"
        return admin.offset_at(partition, max(self.time_ms, 0))


def place_of(option: str, text: str) -> LogPlace:
    """Read an option's value. Raises `InvalidArgumentError` with the option and its value.

    | written                | means                                                                        |
    |------------------------|------------------------------------------------------------------------------|
    | ``earliest``           | the first record kept                                                        |
    | ``latest``             | the end as it is now                                                         |
    | ``1200``               | that offset                                                                  |
    | ``2013-05-01T12:00Z``  | the first record whose timestamp in the log is at least that (ISO 8601)      |
    | ``-15m``               | the same, so long ago: ``ms``, ``s``, ``m``, ``h`` or ``d``                  |
    """
    if text in ("earliest", "latest"):
        return LogPlace(word=text)
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return LogPlace(offset=int(text))
    if (ago := _AGO.fullmatch(text)) is not None:
        return LogPlace(time_ms=now_ms() - int(ago[1]) * _UNIT_MS[ago[2]])
    try:
        return LogPlace(time_ms=epoch_ms(iso_time(text)))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{option} {shown(text)}: {_ACCEPTED}") from error


def ranges(
    admin: Admin,
    partitions: Sequence[TopicPartition],
    begin: LogPlace,
    until: LogPlace | None,
    *,
    committed: bool,
    follow: bool,
) -> dict[TopicPartition, tuple[int, int | None]]:
    """Return the offset to begin with and the offset to end before, by partition. The end is that of now unless `until`
    says less, and None with `follow`. `committed`: open transactions do not count."""
    found: dict[TopicPartition, tuple[int, int | None]] = {}
    bounds = admin.bounds(partitions)
    ends = admin.committed_ends(partitions) if committed else {each: end for each, (_, end) in bounds.items()}
    for partition in partitions:
        first, end = bounds[partition][0], ends[partition]
        start = max(begin.offset_in(admin, partition, first, end), first)
        stop = None if until is None else until.offset_in(admin, partition, first, end)
        if not follow:
            stop = end if stop is None else min(stop, end)
        found[partition] = start, stop
    return found


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The options of the command. No `partitions`: all. `most` None: no limit."""

    begin: LogPlace
    until: LogPlace | None = None
    partitions: tuple[int, ...] = ()
    most: int | None = None
    follow: bool = False
    isolation_level: IsolationLevel = "read_committed"
    format: Format = "text"


def wanted_of(
    begin: str,
    until: str | None,
    partitions: Sequence[int],
    most: int | None,
    isolation_level: str,
    format_: str,
    *,
    follow: bool,
) -> ConsumeOptions:
    """Read the options. Raises `InvalidArgumentError` with the option and its value."""
    level = word_of("--isolation-level", isolation_level, _ISOLATION_LEVELS)
    form = word_of("--format", format_, FORMATS)
    end = None if until is None else place_of("--to", until)
    return ConsumeOptions(place_of("--from", begin), end, tuple(partitions), most, follow, level, form)


def topics_of(config: Config, names: Sequence[str], *, dead_letters: bool) -> list[str]:
    """The topics to read. Raises `InvalidArgumentError` if none is named, or there is no dead-letter topic."""
    if not dead_letters:
        if not names:
            raise InvalidArgumentError("Name a topic, or ask for --dead-letters.")
        return list(dict.fromkeys(names))
    if names:
        raise InvalidArgumentError(f"--dead-letters reads the dead-letter topic: leave {shown(names[0])} out.")
    if config.dead_letter_topic is None:
        raise InvalidArgumentError(
            "The application has no dead-letter topic: errors.dead.letter.queue.topic.name is not set."
        )
    return [config.dead_letter_topic]


def consume(app: App, config: Config, names: Sequence[str], wanted: ConsumeOptions, out: TextIO) -> int:
    """Write each record of these topics as a line. Returns their number. With `follow` only an interrupt ends it.

    Raises `DoesNotExistError` with the existing topics, and `InvalidArgumentError` for a partition of no topic.
    """
    if not log_exists(config):
        raise DoesNotExistError(f"There is no topic {names[0]!r}: {config.bootstrap_servers} holds nothing yet.")
    topology = app.topology()
    topics = {  # with serdes that register no schema
        name: replace(topic, key=looking_up(topic.key), value=looking_up(topic.value))
        for name, topic in {**topology.changelogs(), **topology.topics_known()}.items()
    }
    lines, count = RecordLines(topics, wanted.format), 0
    with closing(configured_log(config)) as log, closing(_records(log, names, wanted)) as records:
        for record in records:
            out.write(lines.line(record) + "\n")
            count += 1
            if wanted.follow:
                out.flush()
    out.flush()
    return count


def _records(log: Log, names: Sequence[str], wanted: ConsumeOptions) -> Generator[Record]:
    is_committed = wanted.isolation_level == "read_committed"
    with closing(log.admin()) as admin:
        existing = admin.topics(names)
        if missing := [name for name in names if name not in existing]:
            there = ", ".join(sorted(admin.topics())) or "none"
            raise DoesNotExistError(f"There is no topic {missing[0]!r}. There are: {there}.")
        partitions = _partitions({name: existing[name].partitions for name in names}, wanted.partitions)
        spans = ranges(admin, partitions, wanted.begin, wanted.until, committed=is_committed, follow=wanted.follow)
    left = {each: (start, stop) for each, (start, stop) in spans.items() if stop is None or start < stop}
    if not left or wanted.most == 0:
        return
    with closing(log.consumer(isolation_level=wanted.isolation_level)) as consumer:
        consumer.assign({partition: start for partition, (start, _) in left.items()})
        count = 0
        while left:
            for record in consumer.poll(_POLL_RECORDS, _POLL_S):
                stop = left.get(TopicPartition(record.topic, record.partition), (0, 0))[1]
                if stop is not None and record.offset >= stop:
                    continue
                yield record
                count += 1
                if count == wanted.most:
                    return
            # Gaps may follow the last record, so its offset does not tell whether the end is reached.
            reached = {each: consumer.next_offset(each) or 0 for each in left}
            ended = [each for each, (_, stop) in left.items() if stop is not None and reached[each] >= stop]
            consumer.pause(ended)
            for each in ended:
                del left[each]


def _partitions(counts: Mapping[str, int], numbers: Collection[int]) -> list[TopicPartition]:
    most = max(counts.values(), default=0)
    if others := sorted(number for number in numbers if not 0 <= number < most):
        raise InvalidArgumentError(f"--partition {others[0]}: {', '.join(counts)} has {most}, numbered from 0 on.")
    every = (TopicPartition(name, number) for name, count in counts.items() for number in range(count))
    return [each for each in every if not numbers or each.partition in numbers]


def quietly(app: App, config: Config, names: Sequence[str], wanted: ConsumeOptions) -> int:
    """Run `consume` to standard output and return the exit code. The reader may close the pipe at any time, like
    `head`."""
    try:
        consume(app, config, names, wanted, sys.stdout)
    except BrokenPipeError:
        # Otherwise Python flushes the rest at its end, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        if not wanted.follow:
            raise
    return 0
