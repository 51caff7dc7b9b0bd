"""Read parameters of the URL and members of a JSON body by one set of rules.

`parameters` declares them for the OpenAPI document. `written_arguments` parses query strings and bodies. A value from a
URL is text; one from a body is JSON. An unreadable value raises `InvalidArgumentError`, which names the parameter.

A key of type `json` is looked up byte for byte as it is written, in a body too: `[1, 2]` is not `[1,2]`. With
`keys_as=text`, a body writes keys as a URL does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Any

import orjson
from starlette.requests import Request

from stateline.model.record_size import MAX_KEY_BYTES
from stateline.serde.iso_times import EPOCH, MILLISECOND, epoch_ms, iso_time
from stateline.serde.key_text import key_of_text
from stateline.serde.plain import Serde, shortened, shown
from stateline.server.contract.written_arguments import Argument, from_query_string, json_text, parsed_json
from stateline_store import DoesNotExistError, InvalidArgumentError, Position, PositionBound

_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
# As times in milliseconds they are of the first two days of 1970, or beyond the year 2286: whoever writes one means a
# date, or a date and a time.
_BARE_DATE = re.compile(r"[1-9]\d{7}(?:\d{6})?", re.ASCII)
# Python takes any character between date and time, also a digit.
_NO_SEPARATOR = re.compile(r"\d{9,}", re.ASCII)
_TOO_LARGE = re.compile(r"-?\d{20,}", re.ASCII)
_FORGOTTEN_PLUS = re.compile(r"(?<=:\d\d) (?=\d\d:?\d\d$)|(?<=\.\d{3}) (?=\d\d:?\d\d$)", re.ASCII)
_UNBOUNDED = PositionBound()


class Arguments:
    """The arguments of one request. Each method reads one, or returns its default if it was not given."""

    def __init__(self, given: Mapping[str, Argument]) -> None:
        """A null member of a body counts as not given, but its name must be an allowed one."""
        self._names = given.keys()
        self._given = {name: argument for name, argument in given.items() if argument.value is not None}
        self.key_bytes = 0
        """Of the keys and the JSON that were read."""
        self._keys_as_text = self.choice("keys_as", "json", ("json", "text")) == "text"

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def names(self) -> set[str]:
        return set(self._given)

    def refuse_others(self, allowed: Iterable[str]) -> None:
        """Raise for an argument that is not allowed."""
        allowed = tuple(allowed)
        for name in self._names:
            if name not in allowed:
                known = ", ".join(name for name in allowed if name != "type")
                raise InvalidArgumentError(f"Unknown parameter {shown(name)}: this query takes {known or 'none'}.")

    def integer(self, name: str, default: int, minimum: int, maximum: int, setting: str) -> int:
        """Return an integer of this range. `setting` names what sets its upper end."""
        argument = self._given.get(name)
        if argument is None:
            return default
        value = argument.value
        if argument.textual and _INTEGER.fullmatch(value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if minimum <= value <= maximum:
                return value
        elif not (argument.textual and _TOO_LARGE.fullmatch(value)):
            raise InvalidArgumentError(f"{name}={argument.shown()} is not an integer.")
        raise InvalidArgumentError(
            f"{name}={shown(value)} is out of range: {minimum} to {maximum} ({setting}) is accepted."
        )

    def time(self, name: str) -> int | None:
        """Return a time in milliseconds since the epoch; None if it was not given."""
        argument = self._given.get(name)
        if argument is None:
            return None
        value = argument.value
        if argument.textual and _BARE_DATE.fullmatch(value):
            year = (EPOCH + int(value) * MILLISECOND).year
            raise InvalidArgumentError(
                f"{name}={value} would be milliseconds, a time of {year}: write a date as "
                f"2026-01-01 or 2026-01-01T00:00:00Z, or 0{value} if so many milliseconds are meant."
            )
        if argument.textual and _INTEGER.fullmatch(value):
            value = int(value)
        if isinstance(value, str):
            value = _iso_time(value)
        if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
            return value
        raise InvalidArgumentError(
            f"{name}={argument.shown()} is no time: write milliseconds since the epoch, or ISO 8601 as in "
            "2026-01-31T12:00:00Z."
        )

    def text(self, name: str) -> str | None:
        argument = self._given.get(name)
        if argument is None:
            return None
        if not isinstance(argument.value, str):
            raise InvalidArgumentError(f"{name}={argument.shown()} is not a text.")
        return argument.value

    def json(self, name: str) -> bytes:
        """Return any value of a body, as JSON. Raises `InvalidArgumentError` if it was not given."""
        argument = self._given.get(name)
        if argument is None or argument.textual:
            raise InvalidArgumentError(f"{name} is missing: any JSON value, in the body.")
        try:
            text = orjson.dumps(argument.value)
        except orjson.JSONEncodeError as error:  # a number that does not fit
            raise InvalidArgumentError(f"{name}={argument.shown()} cannot be passed on: {error}.") from error
        self.key_bytes += len(text)
        return text

    def texts(self, name: str, maximum: int) -> tuple[str, ...]:
        """Return 1 to `maximum` texts of an array in a body, in the order given, each once."""
        argument = self._given.get(name)
        if argument is None:
            raise InvalidArgumentError(f"{name} is missing: an array of 1 to {maximum} texts is accepted.")
        value = argument.value
        if (
            not isinstance(value, list)
            or not 1 <= len(value) <= maximum
            or not all(isinstance(item, str) for item in value)
        ):
            raise InvalidArgumentError(f"{name}={json_text(value)}: an array of 1 to {maximum} texts is accepted.")
        return tuple(dict.fromkeys(value))

    def boolean(self, name: str) -> bool:
        """Return true or false; false by default."""
        argument = self._given.get(name)
        if argument is None:
            return False
        value = {"true": True, "false": False}.get(argument.value) if argument.textual else argument.value
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name}={argument.shown()} is neither true nor false.")
        return value

    def choice(self, name: str, default: str, choices: Iterable[str]) -> str:
        argument = self._given.get(name)
        if argument is None:
            return default
        for choice in choices:
            if argument.value == choice:
                return choice
        raise InvalidArgumentError(f"{name}={argument.shown()} is not one of {', '.join(choices)}.")

    def partitions(self) -> tuple[int, ...] | None:
        """Return the partitions asked for, ascending; None for all."""
        argument = self._given.get("partition")
        if argument is None:
            return None
        numbers = argument.value if isinstance(argument.value, list) else [argument.value]
        if argument.textual:
            parts = [part for text in numbers for part in text.split(",")]
            numbers = [int(part) if _INTEGER.fullmatch(part) else part for part in parts]
            if beyond := next(filter(_TOO_LARGE.fullmatch, parts), None):
                raise no_such_partition(beyond)
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int):
                given = Argument(number, argument.textual).shown()
                raise InvalidArgumentError(f"partition={given} is not a partition number.")
            if abs(number) >= 10**19:  # more than _INTEGER
                raise no_such_partition(json_text(number))
        if not numbers:
            raise InvalidArgumentError("partition is empty: name one, or leave it out.")
        return tuple(sorted(set(numbers)))

    def bound(self, most: int) -> PositionBound:
        """Return the position bound, which names at most so many topics and partitions; none by default."""
        argument = self._given.get("position_bound")
        if argument is None:
            return _UNBOUNDED
        value = parsed_json("position_bound", argument.value) if argument.textual else argument.value
        return self._bound_of("position_bound", value, most)

    def bounds(self, name: str, most: int) -> dict[str, PositionBound] | None:
        """Return the position bound of each store in this argument, each as by `bound`. None if it was not given."""
        argument = self._given.get(name)
        if argument is None or argument.value is None:
            return None
        value = parsed_json(name, argument.value) if argument.textual else argument.value
        if not isinstance(value, dict):
            raise InvalidArgumentError(f"{name}={argument.shown()}: an object of store → Position.")
        return {store: self._bound_of(f"{name} of {json_text(store)}", each, most) for store, each in value.items()}

    @staticmethod
    def _bound_of(name: str, value: object, most: int) -> PositionBound:
        named = (
            len(value) + sum(len(p) for p in value.values() if isinstance(p, dict)) if isinstance(value, dict) else 0
        )
        if named > most:
            raise InvalidArgumentError(
                f"{name} names {named} topics and partitions: {most} are accepted. Send the position of an "
                "answer of this store."
            )
        try:
            return PositionBound(Position.from_json(value))
        except ValueError as error:  # InvalidArgumentError is one; Python's own, a number of 4300 digits
            raise InvalidArgumentError(f"{name}: {error}") from error

    def key(self, name: str, serde: Serde) -> bytes | None:
        """Return a key of the store's key type, as bytes; None if it was not given."""
        argument = self._given.get(name)
        if argument is None:
            return None
        key = _key_of(name, argument, serde, as_text=self._keys_as_text)
        self.key_bytes += len(key)
        return key

    def keys(self, serde: Serde, maximum: int) -> tuple[bytes, ...]:
        """Return the keys of a body, in the order given, each once."""
        argument = self._given.get("keys")
        accepted = f"an array of 1 to {maximum} (server.limit.max) keys is accepted."
        if argument is None:
            raise InvalidArgumentError(f"keys is missing: {accepted}")
        if not isinstance(argument.value, list) or not 1 <= len(argument.value) <= maximum:
            raise InvalidArgumentError(f"keys={json_text(argument.value)}: {accepted}")
        as_text = self._keys_as_text
        keys = tuple(dict.fromkeys(_key_of("keys", item, serde, as_text=as_text) for item in argument.items()))
        self.key_bytes += sum(map(len, keys))
        return keys


def _iso_time(text: str) -> int | None:
    """Return milliseconds since the epoch, rounded down; None for anything else than ISO 8601. Without a zone it is
    UTC."""
    if _NO_SEPARATOR.match(text):
        return None
    try:
        # A query string's + is a space: who forgot to write %2B is understood, for no time has a space before its zone.
        return epoch_ms(iso_time(_FORGOTTEN_PLUS.sub("+", text), UTC))
    except ValueError:
        return None


def _key_of(name: str, argument: Argument, serde: Serde, *, as_text: bool) -> bytes:
    if as_text and not argument.textual:
        if not isinstance(argument.value, str):
            raise InvalidArgumentError(f"{name}={argument.shown()} is not a text, as keys_as=text says.")
        return read_key(name, argument.value, serde, textual=True)
    if argument.written is not None:
        if len(argument.written) > MAX_KEY_BYTES:  # and its bytes are not fewer
            raise _too_long(name, len(argument.written))
        return read_key(name, argument.written, serde, textual=True)
    return read_key(name, argument.value, serde, textual=argument.textual)


def no_such_partition(number: str) -> DoesNotExistError:
    """Say that no store can have a partition of this number."""
    return DoesNotExistError(f"There is no partition {shortened(number)}: partitions are numbers from 0 on.")


def numbers_shown(count: int) -> str:
    """Return the numbers of so many partitions, for a message."""
    return "only 0" if count == 1 else f"0 to {count - 1}"


def refuse_parameters(request: Request) -> None:
    """Raise `InvalidArgumentError` if the request has any parameter."""
    Arguments(from_query_string(request.scope["query_string"])).refuse_others(())


def read_key(name: str, value: Any, serde: Serde, *, textual: bool) -> bytes:
    """Return the bytes of a key that was written as text or as JSON."""
    try:
        key = key_of_text(serde, value) if textual else serde.from_json(value)
    except InvalidArgumentError as error:
        why = str(error) if textual else str(error).replace(shown(value), json_text(value), 1)
        raise InvalidArgumentError(f"{name}: {why} The store's keys are of type {serde.name}.") from error
    if len(key) > MAX_KEY_BYTES:
        raise _too_long(name, len(key))
    return key


def _too_long(name: str, size: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} has {size} bytes: {MAX_KEY_BYTES} are accepted.")
