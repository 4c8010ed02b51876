"""Keeps secrets out of what the clients' libraries log: at level DEBUG they write down headers and answers in full."""

from __future__ import annotations

import logging
import traceback

from storage.secrets import redact

__all__ = ["RedactSecrets", "silence_secrets"]

_LIBRARIES = ("botocore", "aiobotocore", "boto3", "urllib3", "aiohttp", "s3fs", "fsspec", "gcsfs", "adlfs", "azure")


class RedactSecrets(logging.Filter):
    """Masks secrets in a record before any handler sees it; records below the logger's level cost nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrites the record where there is something to mask; lets every record pass."""
        try:
            said = record.getMessage()
        except (TypeError, ValueError):  # the handler will report the mismatch of format and arguments
            return True
        if (masked := redact(said)) != said:
            record.msg, record.args = masked, ()
        if record.exc_info and record.exc_info[0] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            if (masked := redact(trace)) != trace:
                record.exc_text, record.exc_info = masked, None
        return True


_filter = RedactSecrets()


def silence_secrets() -> None:
    """Puts the filter on every logger of the clients' libraries that there is; called whenever a client is made.

    A logger's filter sees what is logged to it and not what its children hand up, so each of them needs one.
    """
    existing = logging.root.manager.loggerDict
    for name in list(existing):
        if name.partition(".")[0] in _LIBRARIES and isinstance(logger := existing[name], logging.Logger):
            logger.addFilter(_filter)  # does nothing where it is already
