"""Every error that Stateline raises on purpose, as one tree.

    StatelineError
    ├── CallerError              the caller's mistake: change the call, a retry cannot help
    │   ├── InvalidArgumentError     a value that cannot be used (also a ValueError)
    │   ├── ConfigurationError       a setting that is missing, unknown or out of range
    │   ├── TopologyError            an application that cannot run as it is declared
    │   ├── DoesNotExistError        no such store, partition or topic
    │   ├── UnauthenticatedError     the caller is unknown
    │   ├── ForbiddenError           the caller is known and may not have this
    │   ├── UnknownQueryTypeError    this kind of store cannot answer this query
    │   ├── StoreClosedError         the store was used before `init` or after `close`
    │   ├── NewerFormatError         a newer version of Stateline wrote it: run that one
    │   └── RecordError              a record cannot be read or processed (the message names its place)
    ├── RetryLaterError          nothing is wrong with the call: the same call can succeed later
    │   ├── NotUpToBoundError        the state is still behind the position bound
    │   ├── NotPresentError          the partition is not here or its owner cannot be reached
    │   ├── NotActiveError           an active copy was required, and this one is not
    │   ├── NotReadyError            starting or shutting down
    │   ├── TooManyRequestsError     a limit of the service is reached
    │   ├── LockedError              a directory that another live process owns
    │   ├── LogUnavailableError      the broker or the log file does not answer
    │   ├── SchemaRegistryUnavailableError   the Schema Registry does not answer
    │   ├── FencedError              another producer or member took over this identity
    │   ├── InDoubtError             a transaction's outcome is unknown: settle it first
    │   └── StorageError             the disk, or RocksDB, refuses to read or write
    │       └── PoisonedError            a commit failed half way: reopen the store
    └── DamagedDataError         data on disk is damaged; the message says how to rebuild it

`stateline.problem_kinds` maps this tree to reasons and HTTP statuses.
"""

from __future__ import annotations


class StatelineError(Exception):
    """Root of every deliberate error."""


class CallerError(StatelineError):
    """The caller's mistake: a retry of the same call cannot succeed."""


class InvalidArgumentError(CallerError, ValueError):
    """A value that cannot be used. The message shows the value and the accepted ones."""


class SqlInvalidError(InvalidArgumentError):
    """A statement that cannot be parsed, bound or run. The message has the place."""


class SqlNotAllowedError(InvalidArgumentError):
    """A statement that is not one SELECT, or asks for files, settings or the network."""


class SqlTooLargeError(InvalidArgumentError):
    """A statement reads or returns more than one may, or needs more memory: narrow it."""


class SqlTimeoutError(InvalidArgumentError):
    """A statement did not end before its deadline: narrow it, or give it more time."""


class SqlNotInstalledError(CallerError):
    """DuckDB is not installed where statements run: install the extra `sql`."""


class McpNotInstalledError(CallerError):
    """The MCP SDK is not installed where agents ask: install the extra `mcp`."""


class NotAcceptableError(InvalidArgumentError):
    """This query does not have the requested format. The message lists its formats."""


class ConfigurationError(CallerError):
    """A setting that is missing, unknown or out of range. The message names it and its allowed values."""


class TopologyError(CallerError):
    """An application that cannot run as declared: a missing topic, two stores of one name, and so on. `of_store` is set
    if a store's data differ from its declaration."""

    of_store: str | None = None


class DoesNotExistError(CallerError):
    """There is no such store, partition or topic."""


class UnauthenticatedError(CallerError):
    """The caller is not known: it sent no token, or no valid one."""


class ForbiddenError(CallerError):
    """The caller is known, and may not have this."""


class UnknownQueryTypeError(CallerError):
    """This kind of store cannot answer this query."""


class StoreClosedError(CallerError):
    """The store was used before `init` or after `close`."""


class NewerFormatError(CallerError):
    """A newer version of Stateline wrote it. It is refused, and never deleted or overwritten, even if it could be
    rebuilt. The message has the content, its place and the known versions, and says to run the newer version."""

    @classmethod
    def of(cls, where: object, found: str, known: str) -> NewerFormatError:
        """Make the error for a file or another place `where`. `found` and `known` name its content, as ``format version
        2`` and ``up to 1``."""
        return cls(
            f"{where} has {found}; this version of Stateline reads {known}. Nothing was changed: run the newer version "
            "that wrote it."
        )


class RecordError(CallerError):
    """A record that cannot be read or processed. The message has its topic, partition, offset and key."""


class RetryLaterError(StatelineError):
    """Nothing is wrong with the call. It can succeed later."""


class NotUpToBoundError(RetryLaterError):
    """The state is still behind the requested position bound."""


class NotPresentError(RetryLaterError):
    """The partition is not on this instance, or the process that owns it cannot be reached."""


class NotActiveError(RetryLaterError):
    """An active copy was required, and this one is a standby or still restoring."""


class NotReadyError(RetryLaterError):
    """The service is starting or shutting down."""


class CursorExpiredError(RetryLaterError):
    """The state behind a cursor, a snapshot or a change feed's position is gone: start over."""


class TooManyRequestsError(RetryLaterError):
    """A limit of the service is reached."""


class LockedError(RetryLaterError):
    """Another live process owns this directory."""


class LogUnavailableError(RetryLaterError):
    """The broker or the embedded log does not answer."""


class SchemaRegistryUnavailableError(RetryLaterError):
    """The Schema Registry does not answer, and its schemas are needed to read or write."""


class FencedError(RetryLaterError):
    """A newer producer or group member took over this identity: stop, or start again."""


class InDoubtError(RetryLaterError):
    """A transaction may or may not have been committed: settle it before anything else is written."""


class StorageError(RetryLaterError):
    """The disk, or RocksDB, refuses to read or write: it is full, read-only or broken."""


class PoisonedError(StorageError):
    """A commit failed half way; the store refuses everything until it is reopened."""


class DamagedDataError(StatelineError):
    """Damaged data on disk. The message names it and says how to rebuild it."""
