"""How far the worker and the pipelines are, and waiting until the answers reflect a position."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress

import orjson

from flights.application import app, by_airport, weather_by_airport
from flights.loader import TABLES
from stateline.client import Client, RequestError, UnreachableError
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log import Log
from stateline.model.pipeline import epochs_topic
from stateline_store import DoesNotExistError, NotUpToBoundError, Position, TopicPartition

_WAIT_MS = 500  # of one request, between two looks at the processes
_LOOK_INTERVAL_S = 0.2
_LOOK_BACK = 16  # offsets before the end among which a record is: transactions leave gaps of one
_POLL_TIMEOUT_S = 10.0
_CATCH_UP_TIMEOUT_S = 300.0  # minutes more than it takes; a stuck process must not hang the demo for ever
# Pipeline → the topic of its markers; each is called as the store of its results.
PIPELINES = {name: epochs_topic(app.application_id, name) for name in app.topology().pipelines}

Idle = Callable[[], None]
"""Called again and again while waiting: looks after the processes, moves the bars."""


def read_so_far(client: Client, store: str) -> Position:
    """The committed Position of a store; empty while the server or the store is not up yet."""
    position = Position()
    with suppress(UnreachableError, RequestError):
        for partition in client.store(store).position().committed.values():
            position = position.merge(partition)
    return position


def await_all_stores(client: Client, log: Log, departures: Position, idle: Idle) -> dict[str, Position]:
    """Return once every store reflects all that was written, `departures` of that topic; the Position of each that
    does. Raises `NotUpToBoundError` when that takes minutes."""
    bounds = {name: last_position(log, name) for name in TABLES} | {"aircraft": departures}
    for store, position in bounds.items():
        await_store(client, store, position, idle, timeout_s=_CATCH_UP_TIMEOUT_S)
    # The worker commits what it forwards no later than the table, so all of it is visible by now.
    derived = {
        "airport_totals": last_position(log, by_airport.name),
        "weather_as_of": last_position(log, weather_by_airport.name),
    }
    for name, epochs in PIPELINES.items():
        await_pipeline(log, epochs, departures, idle, timeout_s=_CATCH_UP_TIMEOUT_S)
        derived[name] = last_position(log, name)
    for store, position in derived.items():
        await_store(client, store, position, idle, timeout_s=_CATCH_UP_TIMEOUT_S)
    return bounds | derived


def await_store(client: Client, store: str, position: Position, idle: Idle, *, timeout_s: float) -> None:
    """Return once committed answers of a store reflect this Position.

    Raises `NotUpToBoundError` with the server's last word when that takes longer than `timeout_s`.
    """
    deadline, last = time.monotonic() + timeout_s, "the server does not answer"
    while time.monotonic() < deadline:
        idle()
        try:
            client.store(store).count(bound=position, wait_ms=_WAIT_MS, isolation_level="read_committed")
            return
        except NotUpToBoundError as error:  # it has waited already
            last = str(error)
        except (UnreachableError, RequestError) as error:
            last = str(error)
            time.sleep(_LOOK_INTERVAL_S)
    raise NotUpToBoundError(f"{store} did not catch up within {timeout_s:g} s: {last}")


def await_pipeline(log: Log, epochs: str, position: Position, idle: Idle, *, timeout_s: float) -> None:
    """Return once the results of a pipeline reflect this Position of its input, by the markers in `epochs`.

    Raises `NotUpToBoundError` when that takes longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not _reaches(pipeline_read_so_far(log, epochs), position):
        if time.monotonic() > deadline:
            raise NotUpToBoundError(
                f"The pipeline did not catch up within {timeout_s:g} s, by {epochs}: its messages are in the demo's "
                "output.log."
            )
        idle()
        time.sleep(_LOOK_INTERVAL_S)


def pipeline_read_so_far(log: Log, epochs: str) -> Position:
    """The input that a pipeline's results reflect; empty before its first micro-batch."""
    try:
        markers = last_records(log, epochs)
    except DoesNotExistError:
        return Position()  # the pipeline has not started yet
    position = Position()
    for _, value in markers.values():
        # Next offsets of each source, as Spark's checkpoint has them, and the topic's id.
        for text in filter(None, EpochMarker.decode(value).end_offsets):
            ends = {
                topic: {int(p): n - 1 for p, n in of_topic.items() if p != "id" and n}
                for topic, of_topic in orjson.loads(text).items()
            }
            position = position.merge(Position(ends))
    return position


def last_position(log: Log, topic: str) -> Position:
    """The Position of a store that has read everything that is visible in a topic now."""
    return Position.of({partition: offset for partition, (offset, _) in last_records(log, topic).items()})


def last_records(log: Log, topic: str) -> dict[TopicPartition, tuple[int, bytes]]:
    """Offset and value of the last visible record of each partition that has any.

    Raises `DoesNotExistError` when there is no such topic.
    """
    with closing(log.admin()) as admin:
        info = admin.topics().get(topic)
        if info is None:
            raise DoesNotExistError(f"There is no topic {topic!r} yet.")
        marks = {partition: admin.watermarks(partition) for partition in info.places}
    starts = {p: max(first, end - _LOOK_BACK) for p, (first, end) in marks.items() if end > first}
    last: dict[TopicPartition, tuple[int, bytes]] = {}
    deadline = time.monotonic() + _POLL_TIMEOUT_S
    with closing(log.consumer()) as consumer:
        consumer.assign(starts)
        while any((consumer.next_offset(p) or starts[p]) < marks[p][1] for p in starts):
            if time.monotonic() > deadline:
                raise NotUpToBoundError(f"The end of topic {topic!r} could not be read in {_POLL_TIMEOUT_S:g} s.")
            for record in consumer.poll(1000, 0.1):
                last[TopicPartition(topic, record.partition)] = (record.offset, record.value or b"")
    return last


def _reaches(position: Position, wanted: Position) -> bool:
    # The least Position that has both is the one that has more already.
    return position.merge(wanted) == position
