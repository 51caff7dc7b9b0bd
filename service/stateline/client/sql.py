"""SQL: the request of a statement, and its rows as Python values, Arrow, pandas and Polars."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypedDict

from stateline.client.answers import AnswerReader, Reply, failure_of, stream_position, unexpected
from stateline.client.requests import ARROW, Request, Time, time_ms
from stateline.client.session import Session
from stateline.client.store_calls import Call, StoreTerms
from stateline.client.terms import GivenPosition, Level, Terms
from stateline.serde.plain import JsonSerde, shown
from stateline_store import ConfigurationError, InvalidArgumentError, IsolationLevel, Position

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl
    import pyarrow as pa

Params = Sequence[Any] | Mapping[str, Any]
"""Values for `$1`, `$2` …, or for `$name`."""
_JSON = JsonSerde()
_SERVERS_TIMEOUT_MS = 10_000  # the default of sql.timeout.ms


class SqlArguments(TypedDict, total=False):
    """Terms of a statement. `as_of` is the moment of versioned stores. `timeout_ms` is how long the statement may run,
    `max_age_ms` how old a shared result may be."""

    isolation_level: Level
    bound: GivenPosition
    wait_ms: int
    require_active: bool
    max_staleness_ms: int
    as_of: Time
    timeout_ms: int
    max_age_ms: int


@dataclass(frozen=True, kw_only=True, eq=False)
class SqlAnswer:
    """The rows of a statement, and the state that they are of. A repeated column name gets a number: `n`, `n_1`."""

    position: Position
    """The input that the rows reflect; usable as `bound`."""
    isolation_level: IsolationLevel
    cut: bool
    """Whether the rows of all tables are of one moment."""
    age_s: int
    """Whole seconds since the rows were read."""
    table: pa.Table
    by_store: Mapping[str, Position]
    """The Position of each store, for a session. Empty without one."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.table.schema.names)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts.

        Integers of any size are `int`, JSON is Python's lists and dicts, times are `datetime`. Intervals are
        `timedelta`, and with months `pyarrow.MonthDayNano`. UUIDs are text. Infinite times are the texts
        `infinity` and `-infinity`. Raises `SqlInvalidError` for a list with a time that Python does not have.
        """
        from stateline.serde.arrow_values import python_values

        columns = [
            python_values(field, column) for field, column in zip(self.table.schema, self.table.columns, strict=True)
        ]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self.table

    def pandas(self) -> pd.DataFrame:
        """Return the rows as a DataFrame of pandas. Integers of more than 64 bits are `Decimal`, JSON is text, and
        intervals are `timedelta64[us]`. A column of intervals with months has objects. Raises `ConfigurationError` if
        pandas is not installed."""
        installed("pandas")
        return _plain(self.table).to_pandas()

    def polars(self) -> pl.DataFrame:
        """Return the rows as a DataFrame of Polars, with the types of `pandas`. Raises `ConfigurationError` if Polars
        is not installed, and `InvalidArgumentError` for intervals with months, which Polars does not have."""
        polars, table = installed("polars"), _plain(self.table)
        for field in table.schema:
            if "month_day_nano_interval" in str(field.type):  # it may be nested
                raise InvalidArgumentError(
                    f"The column {field.name!r} has intervals with months, and Polars has no type for them. Cast the "
                    "column to text in the statement (::text), or use pandas()."
                )
        frame: pl.DataFrame = polars.from_arrow(table)
        return frame


class _SqlReader(AnswerReader[SqlAnswer]):
    """Reads a statement's Arrow stream."""

    def read(self, reply: Reply) -> SqlAnswer:
        if reply.status != HTTPStatus.OK or not reply.headers.get("content-type", "").startswith(ARROW):
            raise failure_of(reply)
        import pyarrow as pa

        from stateline.serde.arrow_values import distinct_names

        try:
            table = pa.ipc.open_stream(reply.content).read_all()
            level = IsolationLevel(reply.headers.get("stateline-isolation-level", ""))
            age_s = int(reply.headers.get("age", "0"))
            told = _JSON.deserialize(reply.headers.get("stateline-store-positions", "{}").encode())
            by_store = {name: Position.from_json(each) for name, each in told.items()}
        except (pa.ArrowInvalid, ValueError) as error:
            raise unexpected(reply.content, f"it is no answer to a statement: {error}") from error
        return SqlAnswer(
            position=stream_position(reply.headers),
            isolation_level=level,
            cut=reply.headers.get("stateline-cut") == "true",
            age_s=age_s,
            table=table.rename_columns(distinct_names(table.schema.names)),
            by_store=by_store,
        )


_READER = _SqlReader(SqlAnswer)


def statement(terms: Terms, session: Session | None, sql: str, params: Params, given: SqlArguments) -> Call[SqlAnswer]:
    """Return the call of one SELECT, bounded by what the session has seen of its stores. Raises `InvalidArgumentError`
    for parameters that JSON does not have, and for terms with partitions."""
    terms = StoreTerms("", terms, None).terms(given, SqlArguments)
    if terms.partitions is not None:
        raise InvalidArgumentError(f"partitions={terms.partitions}: a statement reads all partitions. Leave it out.")
    if not isinstance(params, Mapping) and (isinstance(params, str | bytes) or not isinstance(params, Sequence)):
        raise InvalidArgumentError(f"params={shown(params)}: give a list for $1, $2 …, or a dict for $name.")
    seen = None if session is None else session.positions()
    if session is not None and seen and terms.wait_ms is None:
        terms = replace(terms, wait_ms=session.wait_ms)
    timeout_ms = given.get("timeout_ms")
    members = {
        "sql": sql,
        "params": dict(params) if isinstance(params, Mapping) else list(params),
        **replace(terms, allow_partial=False).members(),
        "store_bounds": None if seen is None else {name: each.to_json() for name, each in seen.items()},
        "as_of": time_ms("as_of", given.get("as_of")),
        "timeout_ms": timeout_ms,
        "max_age_ms": given.get("max_age_ms"),
    }
    body = _JSON.serialize({name: value for name, value in members.items() if value is not None})
    runs_ms = _SERVERS_TIMEOUT_MS if timeout_ms is None else timeout_ms
    return Call(Request("POST", "/v1/sql", body, ARROW, wait_ms=(terms.wait_ms or 0) + runs_ms), _READER)


def seen_in(session: Session | None, answer: SqlAnswer) -> SqlAnswer:
    """Remember the Positions of the answer in the session. Returns the answer."""
    if session is not None:
        for store, position in answer.by_store.items():
            session.saw(store, position)
    return answer


def _plain(table: pa.Table) -> pa.Table:
    """Return the table with JSON as text. Where all of a column fit, whole decimals are int64, because sums are such,
    and intervals are durations."""
    import pyarrow as pa

    from stateline.serde.arrow_values import python_values

    for place, field in enumerate(table.schema):
        is_whole = pa.types.is_decimal(field.type) and field.type.scale == 0
        is_interval = pa.types.is_interval(field.type)
        if is_whole or is_interval or isinstance(field.type, pa.JsonType):
            column = table.column(place)
            with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError):  # ArrowTypeError: an interval with months
                if is_interval:
                    column = pa.array(python_values(field, column), pa.duration("us"))
                else:
                    column = column.cast(pa.int64() if is_whole else pa.utf8())
                table = table.set_column(place, field.name, column)
    return table


def installed(package: str, requirement: str = "") -> Any:
    """Return the module. Raises `ConfigurationError` with what installs it: `requirement`, or the package itself."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{package} is not installed here: run `pip install {requirement or package}`."
        ) from error
