"""Headers of every answer for browsers. With them, no page of another site can show an answer in a frame, embed it as
an image, an object or a script, or guess that it has another type than it says.

uvicorn puts these on each answer of the application, and of `http_protocol`; `bounded_protocol` on its own.
"""

from __future__ import annotations

from stateline.config.settings import Config

ON_EVERY_ANSWER = (
    ("x-content-type-options", "nosniff"),
    ("content-security-policy", "frame-ancestors 'none'"),  # a page may have a second policy: both hold
    # Of embedding alone: what a page asks for openly is CORS' matter (Fetch, "cross-origin resource policy check").
    ("cross-origin-resource-policy", "same-origin"),
)
_RAW = tuple(f"{name}: {value}".encode() for name, value in ON_EVERY_ANSWER)


def headers_of_every_answer(config: Config) -> list[tuple[str, str]]:
    by_origin = [("vary", "Origin")] if config.server_cors_origins is not None else []
    return [*ON_EVERY_ANSWER, *by_origin]


def lines_of_every_answer() -> tuple[bytes, ...]:
    return _RAW
