"""Open the log that the settings describe."""

from __future__ import annotations

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.log import Log, open_log


def log_exists(config: Config) -> bool:
    """False if the embedded log has no file yet. Opening it would make one."""
    file = embedded_path(config.bootstrap_servers, config.state_dir)
    return file is None or file.exists()


def configured_log(config: Config, *, read_only: bool = False) -> Log:
    """The caller closes it. `read_only` and errors are those of `open_log`."""
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
        # In a power cut, the log must not lose records that a store has synced.
        sync=config.statestore_sync,
        read_only=read_only,
    )
