"""Ports for the servers that tests start, while other tests do the same in other processes."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on, and that the system gives to nobody else for a minute.

    A connection over it was closed from its end, so that it is left in TIME_WAIT: who asks for any port is not given
    it, and a server that names it and sets SO_REUSEADDR, as servers do, has it at once.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: bind would pass out such ports too
        listener.listen(1)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            accepted.close()
        return int(listener.getsockname()[1])
