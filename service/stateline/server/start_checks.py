"""What would keep a server from starting, found out before any process is started: a worker that has joined its group
has taken tasks from others, and nobody can ask for them where the server does not start. Whether its addresses can be
listened at shows `listeners.listening`.

It loads nothing of the server but what it looks with.
"""

from __future__ import annotations

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.config.temporary import use_temporary_directory
from stateline.server.guard.exposure import check_tokens
from stateline.server.nodes.keys import check_certificate, node_keys
from stateline.server.wire.tls import check_tls


def check_files(config: Config) -> None:
    """Raise `ConfigurationError` for certificates, keys, secrets and tokens that cannot be used, and if temporary files
    can be kept nowhere."""
    use_temporary_directory(config)
    check_tls(config)
    check_tokens(config)
    if embedded_path(config.bootstrap_servers, config.state_dir) is None:
        keys = node_keys(config)
        if keys is not None:
            check_certificate(config, keys)
