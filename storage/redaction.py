"""Masks credentials in everything that is shown: log records, errors and tracebacks.

`redact` masks every secret that this process has seen, and every place in which vendors write secrets.
`concurrent_loader.storage.secret` wraps the secrets themselves.
"""

from __future__ import annotations

import logging
import re
import threading
import traceback
from collections import OrderedDict
from typing import TypeVar
from urllib.parse import quote

from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.fork_safety import register_fork_handler

__all__ = [
    "MASK",
    "RedactSecrets",
    "redact",
    "redact_error",
    "redact_url",
    "remember",
    "shorten_traceback",
    "silence_secrets",
]

ErrorT = TypeVar("ErrorT", bound=BaseException)


MASK = "***"
# Shorter secrets are parts of common words: masking them would make texts unreadable.
_SHORTEST = 8
_MAX_REMEMBERED = 4096  # the newest secrets: tokens live for an hour, processes for weeks
_RAISED_AT = "raised at "
_MAX_LINES = 6  # lines in the note that replaces a traceback
# The second alternative matches a password with a slash, which ends the host in the grammar of URLs; ports stay.
_USER = re.compile(r"(?<=://)(?:[^/\s\"'<>]+@|[^/@:\s\"'<>]+:(?!\d{1,5}(?:[/?#\s\"'<>,)]|$))(?:(?!://)[^@\s\"'<>])*@)")
_IN_QUERY = re.compile(
    r"(?i)([?&;](?:x-amz-(?:signature|security-token|credential)|x-goog-(?:signature|credential)|sig|signature|"
    r"[\w-]*token|[\w-]*secret|password|api_?key|awsaccesskeyid)=)[^&\s\"'<>;]+"
)
# Headers and fields that carry secrets, as vendors log them: in XML, JSON, a Python dict, or plain lines.
_FIELDS = (
    r"(?:proxy-)?authorization|x-amz-security-token|x-amz-server-side-encryption-customer-key|x-aws-ec2-metadata-token|"
    r"x-amz-sso[_-]bearer[_-]token|(?:set-)?cookie|secret_?access_?key|aws_secret_access_key|session_?token|"
    r"aws_session_token|access_?token|refresh_?token|id_?token|client_?secret|web_?identity_?token|saml_?assertion"
)
_IN_DICT = re.compile(rf"(?i)([\"'](?:{_FIELDS})[\"']\s*:\s*b?)([\"'])(?:\\.|(?!\2).)*\2")
_IN_XML = re.compile(rf"(?i)(<({_FIELDS}|token(?:-\d+)?)>)[^<]*(?=</\2>)")
_IN_LINE = re.compile(rf"(?im)^(\s*(?:{_FIELDS}):\s*)(?![\"'\s])\S.*$")


class _KnownSecrets:
    """The texts that `redact` masks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, None] = OrderedDict()
        self._pattern: re.Pattern[str] | None = None
        register_fork_handler(self)

    def after_fork_in_child(self) -> None:
        """Creates a new lock, because another thread may have held the old one during the fork."""
        self._lock = threading.Lock()

    def add(self, value: object) -> None:
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        if not isinstance(text, str) or len(text) < _SHORTEST:
            return
        with self._lock:
            if text in self._texts:
                self._texts.move_to_end(text)
                return
            self._texts[text] = None
            while len(self._texts) > _MAX_REMEMBERED:
                self._texts.popitem(last=False)
            self._pattern = None

    def pattern(self) -> re.Pattern[str] | None:
        with self._lock:
            if self._pattern is None and self._texts:
                shown = {form for text in self._texts for form in (text, quote(text), quote(text, safe=""))}
                # Longest first: one secret may begin with another.
                ordered = sorted(shown, key=len, reverse=True)
                self._pattern = re.compile("|".join(re.escape(form) for form in ordered))
            return self._pattern


_known = _KnownSecrets()


def remember(*values: object) -> None:
    """Adds values that `redact` masks from now on, such as keys that a server issued."""
    for value in values:
        _known.add(value)


def redact(text: str) -> str:
    """Returns a text with secrets masked: those that this process has seen, and fields that usually hold secrets."""
    pattern = _known.pattern()
    if pattern is not None:
        text = pattern.sub(MASK, text)
    text = _IN_DICT.sub(rf"\1\2{MASK}\2", text)
    text = _IN_XML.sub(rf"\1{MASK}", text)
    text = _IN_LINE.sub(rf"\1{MASK}", text)
    return redact_url(text)


def redact_url(text: str) -> str:
    """Returns a text with the passwords and signatures in its URLs masked."""
    if "://" not in text and "=" not in text:
        return text
    return _IN_QUERY.sub(rf"\1{MASK}", _USER.sub(f"{MASK}@", text))


def redact_error(error: StorageError) -> None:
    """Masks secrets in an error and in its causes, in place.

    A server may repeat a token in its response (S3 repeats an expired one), and clients repeat responses and URLs. The
    variables of the frames hold keys and signed headers, so a note with the line numbers replaces the frames.
    """
    error.what = redact(error.what)
    for name in ("got", "expected"):
        if isinstance(value := getattr(error, name), str):
            setattr(error, name, redact(value))
    error.args = (error.what,)
    if error.__suppress_context__:
        error.__context__ = error.__cause__
    _drop_frames(error)
    _redact_below(error, {id(error): error})


def _redact_below(error: BaseException, done: dict[int, BaseException]) -> None:
    for name in ("__cause__", "__context__"):
        below = getattr(error, name)
        if below is None:
            continue
        if id(below) not in done:
            _drop_frames(below)
            done[id(below)] = _redacted(below)
            _redact_below(done[id(below)], done)
        hides_context = error.__suppress_context__
        setattr(error, name, done[id(below)])
        error.__suppress_context__ = hides_context


def shorten_traceback(error: ErrorT, *, num_frames: int = 5) -> ErrorT:
    """Replaces a long traceback by a note, because a user's mistake is not in the library's frames.

    Args:
        error: Error that is raised to the user next.
        num_frames: Number of frames up to which the traceback stays.

    Returns:
        The same error.
    """
    trace, count = error.__traceback__, 0
    while trace is not None:
        trace, count = trace.tb_next, count + 1
    if count > num_frames:
        _drop_frames(error)
    return error


def _drop_frames(error: BaseException) -> None:
    """Replaces a traceback by a note; its frames cannot be cleared, as a coroutine may be suspended in one."""
    lines = []
    trace, error.__traceback__ = error.__traceback__, None
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append(f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    known = any(note.startswith(_RAISED_AT) for note in getattr(error, "__notes__", ()))
    if len(lines) > 1 and not known:  # the first line is where the error is raised again
        error.add_note(_RAISED_AT + " > ".join(lines[1:][-_MAX_LINES:]))


def _redacted(error: BaseException) -> BaseException:
    if not _shows_secret(error):
        return error
    error.args = tuple(redact(part) if isinstance(part, str) else part for part in error.args)
    if _shows_secret(error):  # its text does not come from its arguments
        shown = Exception(f"{type(error).__qualname__}: {redact(str(error))}")
        shown.__cause__, shown.__context__ = error.__cause__, error.__context__
        return shown
    return error


def _shows_secret(error: BaseException) -> bool:
    shown = [str(error), repr(error), *getattr(error, "__notes__", ())]
    return any(redact(text) != text for text in shown)


_LIBRARIES = ("botocore", "aiobotocore", "boto3", "urllib3", "aiohttp", "s3fs", "fsspec", "gcsfs", "adlfs", "azure")


class RedactSecrets(logging.Filter):
    """Masks secrets in a log record before any handler sees it; records below the logger's level cost nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Masks secrets in the record; passes every record."""
        try:
            said = record.getMessage()
        except (TypeError, ValueError):  # the handler reports the mismatch of format and arguments
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
    """Adds the filter to every existing logger of the clients' libraries; called whenever a client is created.

    A logger's filter does not see the records of its children, so each logger needs the filter.
    """
    existing = logging.root.manager.loggerDict
    for name in list(existing):
        if name.partition(".")[0] in _LIBRARIES and isinstance(logger := existing[name], logging.Logger):
            logger.addFilter(_filter)  # does nothing if the filter is there already
