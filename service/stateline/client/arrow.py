"""Read Arrow streams as record batches. The first read loads pyarrow."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from stateline.client.failures import UnreachableError

if TYPE_CHECKING:
    import pyarrow as pa


class _ChunkFile(io.RawIOBase):
    """The file that pyarrow reads, made of arriving chunks."""

    def __init__(self, next_chunk: Callable[[], bytes]) -> None:
        self._next_chunk = next_chunk
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = memoryview(self._next_chunk())
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


class BatchReader:
    """Record batches of a stream. `next_chunk` returns its chunks, and b"" at the end. For one thread at a time."""

    def __init__(self, next_chunk: Callable[[], bytes]) -> None:
        self._file = io.BufferedReader(_ChunkFile(next_chunk))
        self._stream: pa.RecordBatchStreamReader | None = None

    def next_batch(self) -> pa.RecordBatch | None:
        """Return the next batch, or None after the last. Raises `UnreachableError` if the stream breaks off."""
        import pyarrow as pa

        try:
            if self._stream is None:
                self._stream = pa.ipc.open_stream(self._file)
            return self._stream.read_next_batch()
        except StopIteration:
            return None
        except pa.ArrowInvalid as error:
            raise UnreachableError(f"The Arrow stream is broken off: {error} Read it again.") from error


def batches(chunks: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a stream. Raises like `next_batch`."""
    reader = BatchReader(lambda: next(chunks, b""))
    while (batch := reader.next_batch()) is not None:
        yield batch


async def async_batches(chunks: AsyncIterator[bytes]) -> AsyncIterator[pa.RecordBatch]:
    """Yield the record batches of a stream. pyarrow runs in a thread, and waits there for the event loop's chunks."""
    loop = asyncio.get_running_loop()

    async def next_chunk() -> bytes:
        return await anext(chunks, b"")

    reader = BatchReader(lambda: asyncio.run_coroutine_threadsafe(next_chunk(), loop).result())
    while (batch := await asyncio.to_thread(reader.next_batch)) is not None:
        yield batch
