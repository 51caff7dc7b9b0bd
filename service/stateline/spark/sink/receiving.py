"""Receives the encoded rows of a micro-batch from executors (`stateline.spark.sink.sending`).

Rows stay in unnamed files, small ones in memory, until the micro-batch is written. It may have to be written again, and
its errors must be known before.
"""

from __future__ import annotations

import errno
import hmac
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from stateline.processes.seldom import seldom
from stateline.spark.sink.result_records import ENCODED
from stateline.spark.sink.sending import KEPT, NAME_BYTES, TOKEN_BYTES, WELCOME, Sent, keep_alive
from stateline.spark.sink.strangers import Strangers
from stateline_store import ConfigurationError, DamagedDataError, RetryLaterError

_logger = seldom(__name__)

_IN_MEMORY_BYTES = 256 * 1024  # per file, of hundreds. The rest goes to the disk.
_AT_ONCE_BYTES = 1024 * 1024
_PORTS = 16  # as many as Spark tries (spark.port.maxRetries)


class RowFile:
    """Encoded rows, in memory or on disk until it is closed or the process ends. One thread at a time uses it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, dir=str(directory))  # noqa: SIM115

    def append(self, data: bytes) -> None:
        """Add bytes of an Arrow stream of `ENCODED`. Raises `RetryLaterError` if the disk is full."""
        try:
            self._file.write(data)
        except OSError as error:
            raise self._full(error) from error

    def _full(self, error: OSError) -> RetryLaterError:
        return RetryLaterError(
            f"The rows of a micro-batch cannot be kept below {self._directory}: {error}. Make room there."
        )

    def complete(self) -> None:
        """End the file. Raises `RetryLaterError` if the disk is full."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._full(error) from error

    def writer(self) -> pa.ipc.RecordBatchStreamWriter:
        """Return a writer of batches. Close it after the last. Raises `RetryLaterError` if the disk is full."""
        return pa.ipc.new_stream(_Appending(self), ENCODED)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its batches from the beginning. Only one reader at a time."""
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)

    def close(self) -> None:
        with suppress(OSError):  # if the disk is full
            self._file.close()


class _Appending:
    """Lets Arrow write to a `RowFile`."""

    closed = False

    def __init__(self, file: RowFile) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        self._file.append(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


class EncodedRows:
    """The rows of a micro-batch, in the order of Spark's partitions."""

    def __init__(self, sent: Sequence[Sent], files: Sequence[RowFile], directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._others: list[RowFile] = []
        self.count = sum(each.rows for each in sent)
        self.tombstones = sum(each.tombstones for each in sent)
        self.size_bytes = sum(each.size_bytes for each in sent)
        self.is_ordered = any(each.is_ordered for each in sent)
        self.bad = next((each.bad for each in sent if each.bad is not None), None)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches, as often as it is called. Raises `DamagedDataError` if they are not as many as were
        sent."""
        count = 0
        for file in self._files:
            for batch in file.batches():
                count += len(batch)
                yield batch
        if count != self.count:
            raise DamagedDataError(f"{count} rows of a micro-batch are there, and {self.count} were sent: start again.")

    def new_file(self) -> RowFile:
        """Return a file for derived rows. It lives as long as these rows."""
        self._others.append(RowFile(self._directory))
        return self._others[-1]

    def close(self) -> None:
        for file in (*self._files, *self._others):
            file.close()


class RowReceiver:
    """Listens for the tasks of one pipeline's micro-batches. One thread uses `begin` and `take`."""

    def __init__(self, bind_address: str, host: str, directory: Path, *, port: int = 0) -> None:
        """Listen where executors reach `host`, at this port or a following free one. 0 means any port. `directory`
        keeps rows that do not fit into memory. Raises `ConfigurationError` if none of the ports is free."""
        self.directory = directory
        self._lock = threading.Lock()
        self._token = b""
        self.files: dict[bytes, RowFile] = {}
        self.failure: RetryLaterError | None = None
        self._closed = False
        self._listener = _listener(bind_address.strip("[]"), port)
        self.address: tuple[str, int] = (host.strip("[]"), self._listener.getsockname()[1])
        head_bytes = TOKEN_BYTES + NAME_BYTES
        strangers = Strangers(self._listener, head_bytes, self._introduced, lambda: self._closed)
        threading.Thread(target=strangers.listen, name="result-rows", daemon=True).start()

    def begin(self) -> bytes:
        """Start the next micro-batch and return its token, which tasks show. Drops rows of the one before."""
        self._drop()
        self._token = secrets.token_bytes(TOKEN_BYTES)
        return self._token

    def take(self, sent: Sequence[Sent]) -> EncodedRows:
        """Return the rows of these tasks, and drop all others. The caller closes them. Raises `RetryLaterError` if rows
        were lost."""
        self.check()
        with self._lock:
            files = [self.files.pop(each.name) for each in sent if each.rows]
        self._drop()
        return EncodedRows(sent, files, self.directory)

    def check(self) -> None:
        """Raise `RetryLaterError` if received rows could not be kept."""
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):  # if it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
        self._listener.close()
        self._drop()

    def _introduced(self, connection: socket.socket, head: bytes) -> None:
        """Start a thread for a task of this micro-batch. Close other connections."""
        with ExitStack() as unless_served:
            unless_served.callback(connection.close)
            if not (self._token and hmac.compare_digest(head[:TOKEN_BYTES], self._token)):
                return
            try:
                threading.Thread(target=self._serve, args=(connection, head), daemon=True).start()
            except RuntimeError as error:  # no further thread can start
                _logger.warning("An executor cannot be listened to just now: %s", error)
                return
            unless_served.pop_all()

    def _serve(self, connection: socket.socket, head: bytes) -> None:
        with connection, suppress(OSError, RetryLaterError):  # it is gone, or the disk is full: see `check`
            keep_alive(connection)
            self._receive(connection, head[:TOKEN_BYTES], head[TOKEN_BYTES:])

    def _receive(self, connection: socket.socket, token: bytes, name: bytes) -> None:
        connection.sendall(WELCOME)
        file = RowFile(self.directory)
        try:
            while data := connection.recv(_AT_ONCE_BYTES):
                file.append(data)
            file.complete()
            with self._lock:
                if token != self._token:  # of an earlier micro-batch
                    file.close()
                    return
                self.files[name] = file
        except BaseException as error:
            if isinstance(error, RetryLaterError) and token == self._token:
                self.failure = error
            file.close()
            raise
        connection.sendall(KEPT)

    def _drop(self) -> None:
        with self._lock:
            files, self.files, self._token, self.failure = self.files, {}, b"", None
        for file in files.values():
            file.close()


def _listener(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for candidate in range(port, port + _PORTS):
        try:
            return socket.create_server((address, candidate if port else 0), family=family)
        except OSError as error:
            refused = error
            if error.errno != errno.EADDRINUSE:
                break
    raise ConfigurationError(
        f"Executors cannot send results to this driver at {address}, port {port or 'any'}: {refused}. Set "
        "spark.driver.bindAddress to an address of this machine, and pipeline.results.port to one of 16 ports of which "
        "some are free."
    ) from refused
