"""Explain errors of obstore in one line. Their own texts end with many lines about its internals."""

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
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_ADVICE: dict[int, str] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room there."),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Give this user the right to read and write there."),
    errno.EROFS: "Mount it for writing.",
}


def refusal(url: str, error: BaseException) -> str:
    """Return the first line of an error at this URL, and what to do about it."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text, scheme = str(error).partition("\n")[0][:_MOST_TEXT], urlsplit(url).scheme
    is_denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    advice = None
    if scheme in _CREDENTIALS and (is_denied or _NO_CREDENTIALS.search(text)):
        advice = f"Check the environment: its credentials are {_CREDENTIALS[scheme]}."
    elif number := _OS_ERROR.search(text):
        advice = _ADVICE.get(int(number[1]))
    return f"{text}. {advice}" if advice else text
