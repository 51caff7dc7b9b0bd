"""The log of a configuration."""

from __future__ import annotations

from stateline.config import Config
from stateline.log import Log, open_log


def configured_log(config: Config) -> Log:
    """The log that these settings describe; the caller closes it. Raises as `open_log` does."""
    return open_log(
        config.bootstrap_servers,
        config.state_dir,
        consumer=config.consumer,
        producer=config.producer,
        admin=config.admin,
        session_timeout_ms=config.session_timeout_ms,
        max_poll_interval_ms=config.max_poll_interval_ms,
        transaction_timeout_ms=config.transaction_timeout_ms,
        replication_factor=config.replication_factor,
    )
