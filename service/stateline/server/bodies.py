"""How a request's body is read: bounded in bytes, and in how long it may stand still."""

from __future__ import annotations

from starlette.requests import Request

from stateline.server.waiting import TimeLimits
from stateline_store import InvalidArgumentError

# How long a request may wait for more of its body: what no lossy line needs between two packets, and short enough
# that clients which went to sleep do not keep their connections.
PATIENCE_S = 30.0


async def read_body(request: Request, limits: TimeLimits, most_bytes: int) -> bytes:
    """The body. Raises `InvalidArgumentError` when it has more than `most_bytes` or does not arrive, `NotReadyError`
    when the server stops meanwhile, Starlette's `ClientDisconnect` when the client does not wait for an answer.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > most_bytes):
        raise _too_large(most_bytes)
    body = bytearray()
    chunks = request.stream()
    try:
        while True:
            async with limits.within(PATIENCE_S):
                body += await anext(chunks)
            if len(body) > most_bytes:
                raise _too_large(most_bytes)
    except StopAsyncIteration:
        return bytes(body)
    except TimeoutError as error:
        raise InvalidArgumentError(
            f"Nothing more of the body arrived for {PATIENCE_S:g} s, after {len(body)} bytes: send it again, "
            "as long as its Content-Length says."
        ) from error


def _too_large(most_bytes: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"The body is larger than the {most_bytes} bytes that are accepted here.")
