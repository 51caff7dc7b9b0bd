"""The command by which a store begins anew, as errors name it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stateline_store import TopologyError


def reset_command(store: str) -> str:
    """What to type, once the application is stopped everywhere."""
    return f"stateline reset MODULE:APP --store {store}"


@contextmanager
def says_how_to_begin_anew(store: str) -> Iterator[None]:
    """Let a `TopologyError` in the block, that what is stored is not what is declared, end with that command."""
    try:
        yield
    except TopologyError as error:
        error.args = (f"{error} Or begin anew without its data, the application stopped: {reset_command(store)}",)
        raise
