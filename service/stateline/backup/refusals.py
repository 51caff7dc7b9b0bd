"""Explain errors of obstore and deltalake in one line. Their own texts end with many lines about their internals."""

from __future__ import annotations

import errno
import re
from urllib.parse import urlsplit

_MOST_TEXT = 500  # characters
_AZURE = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    **dict.fromkeys(("az", "abfs", "abfss"), _AZURE),
}
# If the environment has no credentials, obstore asks the machine's cloud for them at one of these paths.
_NO_CREDENTIALS = re.compile(r"/latest/(api|meta-data)/|/computeMetadata/|/metadata/identity|Account must be specified")
_DENIED = "lacked the necessary privileges"
_CAUSE = re.compile(r"^ *\x1b\[31m\u21b3\x1b\[0m (.*)$", re.MULTILINE)  # a line of deltalake's chain
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_ADVICE: dict[int, str] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room there."),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Give this user the right to it, or choose another folder."),
    errno.EROFS: "Mount it for writing.",
}


def refusal(url: str, error: BaseException) -> str:
    """Return the first line of an error at this URL, and what to do about it."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    first, _, more = str(error).partition("\n")
    text, scheme = ": ".join([first, *_CAUSE.findall(more)])[:_MOST_TEXT], urlsplit(url).scheme
    is_denied = isinstance(error, PermissionDeniedError | UnauthenticatedError) or _DENIED in text
    advice = None
    if scheme in _CREDENTIALS and (is_denied or _NO_CREDENTIALS.search(text)):
        advice = f"Check the environment: its credentials are {_CREDENTIALS[scheme]}."
    elif code := _code(error):
        advice = _ADVICE.get(code)
    return f"{text.rstrip('.')}. {advice}" if advice else text


def is_closed(error: BaseException) -> bool:
    """Return whether a directory is closed to this user, so that another attempt cannot succeed."""
    return _code(error) in (errno.EACCES, errno.EPERM, errno.EROFS)


def _code(error: BaseException) -> int | None:
    """Return the number of an error of the file system, also one that obstore has only as text."""
    found = _OS_ERROR.search(str(error))
    return int(found[1]) if found else getattr(error, "errno", None)
