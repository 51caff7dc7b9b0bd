"""`WorkerConnection`: the server's end of one worker's query socket (`stateline.query.wire`).

Each is asked for a sign of life (`status`) again and again: a worker that hangs keeps its socket. For the event loop's
thread only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stateline.query.values import Failure, Outcome, Rows, Terms
from stateline.query.wire import (
    LENGTH,
    WireRequest,
    decode_message,
    decode_outcome,
    decode_rows,
    encode_request,
    frame,
    frame_size,
)
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import (
    CursorExpiredError,
    InvalidArgumentError,
    NotPresentError,
    NotReadyError,
    Query,
    StatelineError,
)
from stateline_store.checkpoints import CheckpointPart

# A worker answers between slices of a few milliseconds; a commit or a rebalance may hold it up for seconds.
ANSWER_TIMEOUT_S = 10.0
# A worker that has given no sign of life for so long counts as unreachable until it does; queries still wait for it.
SILENT_AFTER_S = 3.0

# Requests are counted from 1.
_SUBSCRIPTION = 0
_SIGN_OF_LIFE = -1

_log = logging.getLogger(__name__)


class WorkerConnection:
    """A connection to one worker, subscribed to its commits: each calls `on_commit`. Requests may overlap.

    So does the worker's answer to the subscription: what it committed before it had read that was announced to
    nobody.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_commit: Callable[[], None],
        limits: TimeLimits,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._on_commit = on_commit
        self._limits = limits
        # Since when a sign of life is owed; the first is the answer to the subscription.
        self._owed_since_s: float | None = asyncio.get_running_loop().time()
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._declared: dict[str, str] = {}  # told with the answer to the subscription, which comes before all others
        self._receiving = asyncio.create_task(self._receive())

    @classmethod
    async def open(cls, socket: Path, on_commit: Callable[[], None], limits: TimeLimits) -> WorkerConnection:
        """Connect and subscribe. Raises `OSError` when nobody listens there."""
        reader, writer = await asyncio.open_unix_connection(str(socket))
        connection = cls(reader, writer, on_commit, limits)
        connection._send({"id": _SUBSCRIPTION, "type": "subscribe"})
        return connection

    @property
    def alive(self) -> bool:
        """Whether the worker is still there, as far as this end knows."""
        # A write that failed closes the transport before the end of what arrives is seen.
        return not self._receiving.done() and not self._writer.is_closing()

    @property
    def answers(self) -> bool:
        """Whether the worker is there and has not been silent for `SILENT_AFTER_S`."""
        now_s = asyncio.get_running_loop().time()
        return self.alive and (self._owed_since_s is None or now_s - self._owed_since_s < SILENT_AFTER_S)

    def look_after(self) -> None:
        """Ask for a sign of life, unless one is owed already."""
        if self.alive and self._owed_since_s is None:
            self._owed_since_s = asyncio.get_running_loop().time()
            self._send({"id": _SIGN_OF_LIFE, "type": "status"})

    async def query(self, terms: Terms, partition: int, query: Query[Any], wait_ms: int, declared: str) -> Outcome:
        """What the worker answers. Raises `NotPresentError` when it does not, `StatelineError` when it
        cannot, and `NotReadyError` when it has the store as something else than `declared`
        (`StoreDefinition.description`), or, for a query that may wait, when the server is shutting down.
        """
        number = next(self._numbers)
        message = encode_request(WireRequest(number, terms, partition, query, wait_ms))
        timeout_s = wait_ms / 1000 + ANSWER_TIMEOUT_S
        limit = self._limits.within(timeout_s) if wait_ms else asyncio.timeout(timeout_s)
        try:
            async with limit:
                reply = await self._request(number, message)
        except TimeoutError as error:
            raise NotPresentError(f"The worker did not answer within {timeout_s:g} s: ask again.") from error
        if "outcome" not in reply:
            raise StatelineError(f"The worker refused a query: {reply.get('error')}")
        outcome = decode_outcome(reply["outcome"], self._rest)
        if (theirs := self._declared.get(terms.store, declared)) != declared:
            raise NotReadyError(
                f"The worker has {terms.store!r} as {theirs}, and this server has it as {declared}: the same bytes "
                "would be read as something else. Start both with the same application."
            )
        return outcome

    async def more(self, scan: int, limit: int) -> Rows:
        """What a scan that this worker keeps has next. Raises `CursorExpiredError` when it is gone, or the worker."""
        number = next(self._numbers)
        message = {"id": number, "type": "more", "scan": scan, "limit": limit}
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reply = await self._request(number, message)
        except (TimeoutError, NotPresentError) as error:
            raise CursorExpiredError(
                "The worker that was read from is gone: begin anew, without the cursor."
            ) from error
        if "rows" in reply:
            return decode_rows(reply["rows"], self._rest)
        failure = decode_outcome(reply["outcome"], self._rest) if "outcome" in reply else None
        raise failure.error if isinstance(failure, Failure) else StatelineError(f"Reading on failed: {reply}")

    def drop(self, scan: int) -> None:
        """The rest of this scan is not wanted any more."""
        if self.alive:
            self._send({"id": next(self._numbers), "type": "drop", "scan": scan})

    async def snapshot(self, snapshot: str, places: Sequence[tuple[str, int]]) -> list[CheckpointPart]:
        """Let the worker link these store partitions into a snapshot's directory, all at one commit. Raises
        `NotPresentError` when it does not answer, and what keeps it from making them."""
        number = next(self._numbers)
        message = {"id": number, "type": "snapshot", "snapshot": snapshot, "places": [list(each) for each in places]}
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reply = await self._request(number, message)
        except TimeoutError as error:
            raise NotPresentError(f"The worker did not answer within {ANSWER_TIMEOUT_S:g} s: ask again.") from error
        if "parts" in reply:
            return [CheckpointPart.from_json(part) for part in reply["parts"]]
        failure = decode_outcome(reply["outcome"], self._rest) if "outcome" in reply else None
        raise failure.error if isinstance(failure, Failure) else StatelineError(f"No snapshot was made: {reply}")

    def _rest(self, scan: int) -> WorkerRest:
        return WorkerRest(self, scan)

    async def close(self) -> None:
        """Hang up; pending queries fail."""
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)

    async def _request(self, number: int, message: dict[str, Any]) -> dict[str, Any]:
        if not self.alive:
            raise NotPresentError("The worker has hung up: ask again in a moment.")
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(message)
            reply: dict[str, Any] = await future
            return reply
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._refuse(future.result())  # it had come, and who asked was cancelled before it was taken
            raise
        finally:
            self._pending.pop(number, None)

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(frame(message))

    async def _receive(self) -> None:
        try:
            while True:
                size = frame_size(await self._reader.readexactly(LENGTH.size))
                self._dispatch(decode_message(await self._reader.readexactly(size)))
        except (OSError, asyncio.IncompleteReadError):
            pass  # the worker is gone: those who wait for it are told below
        except InvalidArgumentError as error:
            _log.warning("A worker is not understood, its connection is closed: %s", error)
        finally:
            self._writer.close()
            self._fail_pending()

    def _dispatch(self, message: dict[str, Any]) -> None:
        self._owed_since_s = None  # whatever it says, it lives
        number = message.get("id")
        if message.get("event") == "commit" or number == _SUBSCRIPTION:
            self._declared = message.get("stores", self._declared)
            self._on_commit()
        elif number is not None and (future := self._pending.get(number)) is not None and not future.done():
            future.set_result(message)
        else:
            self._refuse(message)  # who asked was gone before the answer came

    def _refuse(self, reply: dict[str, Any]) -> None:
        """Nobody takes this reply: let the worker forget what it keeps for it."""
        if isinstance(scan := reply.get("outcome", {}).get("rows", {}).get("scan"), int):
            self.drop(scan)

    def _fail_pending(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(NotPresentError("The worker hung up: ask again in a moment."))


class WorkerRest:
    """The rest of a scan that a worker keeps: a `Rest`."""

    def __init__(self, connection: WorkerConnection, scan: int) -> None:
        self._connection = connection
        self._scan: int | None = scan
        self._loop = asyncio.get_running_loop()

    def __del__(self) -> None:
        """An answer that was lost, because a query of several partitions was cancelled, is let go of as well."""
        if self._scan is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._connection.drop, self._scan)  # whatever thread frees it

    async def more(self, limit: int) -> Rows:
        """The next entries; the `Rest` of them is another one."""
        if self._scan is None:
            raise CursorExpiredError("This scan was closed: begin anew.")
        scan, self._scan = self._scan, None
        try:
            return await self._connection.more(scan, limit)
        except BaseException:  # its answer may still come: the worker would keep a scan that nobody knows
            self._connection.drop(scan)
            raise

    def close(self) -> None:
        """Let the worker forget it."""
        scan, self._scan = self._scan, None
        if scan is not None:
            self._connection.drop(scan)
