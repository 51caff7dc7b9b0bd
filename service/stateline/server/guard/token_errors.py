"""Say what is wrong with a tokens file: the place, the kind of the value there, and the right kind.

A message never shows a value. It may be a token, or the hash of one, in the wrong place.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_SHOULD_BE = {
    "tokens": "a list of objects",
    "name": "text of 1 to 200 letters, digits and _ . @ : + -",
    "sha256": "64 hexadecimal digits in small letters, the hash of a token",
    "role": '"read" or "admin"',
    "stores": '"*" or a list of names of stores',
    "expires_at": 'null or a time with its zone, as "2027-01-31T00:00:00Z"',
}
_FILE = "an object with tokens"
_ENTRY = "an object with name, sha256, role, stores and expires_at"
_STORE = "the name of a store"
_KINDS = {bool: "a boolean", int: "a number", float: "a number", list: "a list", tuple: "a list", dict: "an object"}
# No longer than a member's name may be that is shown; a hash has 64 characters, a token more than 50.
_LONGEST_NAME = 30


def described_error(error: ValidationError) -> str:
    """Return the first fault, as the end of a sentence, without values of the file."""
    found = _deepest(error.errors(include_url=False))
    place, field = _place(found["loc"])
    match found["type"]:
        case "json_invalid":
            return found["msg"].replace("Invalid JSON:", "it is not JSON:")
        case "value_error":
            said = found["msg"].removeprefix("Value error, ")
            return f"{place}: {said}" if place else said
        case "missing":
            return f"{place} is missing, and should be {_SHOULD_BE[field]}"
        case "extra_forbidden":
            return f"{_stranger(found['loc'])} is not known here"
        case _:
            return f"{place or 'it'} is {_kind(found['input'])}, and should be {_should_be(found['loc'], field)}"


def _deepest(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """Return the first error; of a choice, where each kind has an error, the one that got furthest."""
    first = errors[0]["loc"][:3]  # tokens, number, field
    return max((error for error in errors if error["loc"][:3] == first), key=lambda error: len(error["loc"]))


def _place(location: Sequence[str | int]) -> tuple[str, str]:
    """Return the error's place in the file, and its field. pydantic puts the kinds of a choice between them."""
    parts = [part for part in location if isinstance(part, int) or part in _SHOULD_BE]
    fields = [part for part in parts if isinstance(part, str)]
    return ".".join(map(str, parts)), fields[-1] if fields else ""


def _should_be(location: Sequence[str | int], field: str) -> str:
    if not location:
        return _FILE
    if isinstance(location[-1], int):
        return _ENTRY if field == "tokens" else _STORE
    return _SHOULD_BE[field]


def _stranger(location: Sequence[str | int]) -> str:
    name = str(location[-1])
    if len(name) > _LONGEST_NAME:
        return f"a member whose name has {len(name)} characters"
    return ".".join(map(str, location))


def _kind(value: object) -> str:
    if isinstance(value, str):
        return f"text of {len(value)} characters"
    return "null" if value is None else _KINDS.get(type(value), "something else")
