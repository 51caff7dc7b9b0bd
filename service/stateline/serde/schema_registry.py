"""The Schema Registry of an application: its address, one client for each process, and its errors.

The client is confluent-kafka's. It is imported, and the registry asked, when the first key or value is written or read.
Thread-safe."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from stateline.serde.plain import shown
from stateline_store import ConfigurationError, InvalidArgumentError, SchemaRegistryUnavailableError

# By default confluent's client waits for ever, which would block a worker or a server's answers.
_DEFAULTS: Mapping[str, str] = {"timeout": "5", "max.retries": "1", "retries.wait.ms": "100"}
_NUMBERS = frozenset(
    ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity", "cache.latest.ttl.sec")
)
_NOWHERE = (
    "There is no Schema Registry: set schema.registry.url, as http://localhost:8081, or give the serde registry=…"
)
_AGAIN = (408, 425, 429)  # of the statuses below 500


class SchemaRegistry:
    """The registry that ``schema.registry.*`` names, by confluent-kafka's names of its client's settings: ``url``,
    ``basic.auth.user.info``, ``ssl.ca.location``, … Picklable."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = _as_text(settings)

    def configure(self, settings: Mapping[str, object]) -> None:
        """From now on these settings."""
        self._settings = _as_text(settings)

    def check(self, whose: str) -> None:
        """Raise `ConfigurationError` if no URL is set. Its message begins with `whose`."""
        if not self._settings.get("url"):
            raise ConfigurationError(f"{whose}: {_NOWHERE}")

    def client(self) -> Any:
        """The client of this registry. A process has one for the same settings. Raises `ConfigurationError`
        without ``schema.registry.url``, and for settings that the client refuses."""
        return _client(tuple(sorted(self._settings.items())))


def import_extra(module: str, extra: str) -> Any:
    """Import a module of this extra. Raises `ConfigurationError` with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"This serde needs packages that are not installed ({error}): pip install 'stateline[{extra}]'."
        ) from error


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn confluent-kafka's exceptions in the block into Stateline's errors, whose messages begin with `what`.

    Raises `SchemaRegistryUnavailableError` if the registry does not answer, `ConfigurationError` if it refuses the
    credentials, `InvalidArgumentError` for all others: an unknown id, a refused schema, bytes or a value of another
    type."""
    errors = import_extra("confluent_kafka.schema_registry.error", "avro")
    transport = import_extra("confluent_kafka.schema_registry.common._httpx_compat", "avro").httpx
    try:
        yield
    except errors.SchemaRegistryError as error:
        status = error.http_status_code
        if status >= 500 or status in _AGAIN or status < 0:
            raise SchemaRegistryUnavailableError(f"{what}: the Schema Registry answers {error}.") from error
        if status in (401, 403):
            raise ConfigurationError(
                f"{what}: the Schema Registry refuses who asks ({error}): set schema.registry.basic.auth.user.info."
            ) from error
        raise InvalidArgumentError(f"{what}: {error}.") from error
    except (transport.HTTPError, OSError) as error:
        raise SchemaRegistryUnavailableError(
            f"{what}: the Schema Registry does not answer ({error}): look at schema.registry.url, and try again."
        ) from error
    except (ConfigurationError, InvalidArgumentError, SchemaRegistryUnavailableError):
        raise
    except Exception as error:  # the libraries' errors have no common base class
        raise InvalidArgumentError(f"{what}: {error}.") from error


def _as_text(settings: Mapping[str, object]) -> dict[str, str]:
    return {**_DEFAULTS, **{name: str(value) for name, value in settings.items()}}


@lru_cache(maxsize=16)
def _client(settings: tuple[tuple[str, str], ...]) -> Any:
    given = dict(settings)
    if not given.get("url"):
        raise ConfigurationError(_NOWHERE)
    clients = import_extra("confluent_kafka.schema_registry", "avro")
    try:
        conf = {name: float(value) if name in _NUMBERS else value for name, value in given.items()}
        return _in_memory(conf) if given["url"].startswith("mock://") else clients.SchemaRegistryClient(conf)
    except (ValueError, TypeError, OSError) as error:
        url = shown(given["url"].rpartition("@")[2])
        raise ConfigurationError(f"The settings schema.registry.* of {url} are refused: {error}.") from error


def _in_memory(conf: Mapping[str, Any]) -> Any:
    """confluent-kafka's registry for tests, which gives a schema that it knows from another subject the id that it has
    there, as every real one does: bytes of a key are looked up in stores of several topics."""
    attrs = import_extra("attrs", "avro")
    mock = import_extra("confluent_kafka.schema_registry._sync.mock_schema_registry_client", "avro")

    class InMemoryRegistry(mock.MockSchemaRegistryClient):  # type: ignore[misc,name-defined]  # it has no types
        def __init__(self) -> None:
            super().__init__(dict(conf))
            self._ids: dict[Any, int] = {}

        def register_schema_full_response(self, subject_name: str, schema: Any, normalize_schemas: bool = False) -> Any:
            made = super().register_schema_full_response(subject_name, schema, normalize_schemas)
            return attrs.evolve(made, schema_id=self._ids.setdefault(schema, made.schema_id))

        def lookup_schema(self, subject_name: str, schema: Any, *arguments: Any, **named: Any) -> Any:
            found = super().lookup_schema(subject_name, schema, *arguments, **named)
            return attrs.evolve(found, schema_id=self._ids.get(schema, found.schema_id))

    return InMemoryRegistry()
