"""Keeps credentials out of everything that is shown or stored, on their way from a user's options to a client.

A `Secret` wraps each of them: it shows itself as ``***``, and it pickles without its value, save on the way to a child
process that is being started right now, which by fork would have had it anyway. `redact` takes every secret that this
process has seen out of a text: logs and vendors' errors go through it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any, Self, TypeVar
from urllib.parse import quote

from storage.errors import ConfigurationError, StorageError
from storage.forking import tell_after_fork

__all__ = [
    "MASK",
    "Secret",
    "hide",
    "is_lost",
    "presentable",
    "redact",
    "redact_url",
    "remember",
    "reveal",
    "shortened",
]

ErrorT = TypeVar("ErrorT", bound=BaseException)


MASK = "***"
LOST = (
    "the credentials were left out of the pickle that this comes from: give them again with "
    "with_storage_options(...) or as storage_options, or set up the standard AWS chain here"
)
# Shorter ones are parts of common words: masking them would make texts unreadable and hide nothing.
_SHORTEST = 8
_MAX_REMEMBERED = 4096  # the newest: tokens live for an hour, processes for weeks
_NAMES = re.compile(
    r"key|secret|token|passw|passphrase|pwd|sas|credential|auth|connection_string|cookie|signature|private",
    re.IGNORECASE,
)
_RAISED_AT = "raised at "
_MAX_LINES = 6  # of a traceback that is replaced by a note
_PLAIN = (list, tuple, set)  # and nothing derived from them, which may take other arguments
# The second form: a password with a slash in it, which ends what a URL's grammar takes for the host. A port is none.
_USER = re.compile(r"(?<=://)(?:[^/\s\"'<>]+@|[^/@:\s\"'<>]+:(?!\d{1,5}(?:[/?#\s\"'<>,)]|$))(?:(?!://)[^@\s\"'<>])*@)")
_IN_QUERY = re.compile(
    r"(?i)([?&;](?:x-amz-(?:signature|security-token|credential)|x-goog-(?:signature|credential)|sig|signature|"
    r"[\w-]*token|[\w-]*secret|password|api_?key|awsaccesskeyid)=)[^&\s\"'<>;]+"
)
# Headers and fields of answers that carry secrets, as vendors log them: in XML, JSON, a Python dict, or plain lines.
_FIELDS = (
    r"(?:proxy-)?authorization|x-amz-security-token|x-amz-server-side-encryption-customer-key|x-aws-ec2-metadata-token|"
    r"x-amz-sso[_-]bearer[_-]token|(?:set-)?cookie|secret_?access_?key|aws_secret_access_key|session_?token|"
    r"aws_session_token|access_?token|refresh_?token|id_?token|client_?secret|web_?identity_?token|saml_?assertion"
)
_IN_DICT = re.compile(rf"(?i)([\"'](?:{_FIELDS})[\"']\s*:\s*b?)([\"'])(?:\\.|(?!\2).)*\2")
_IN_XML = re.compile(rf"(?i)(<({_FIELDS}|token(?:-\d+)?)>)[^<]*(?=</\2>)")
_IN_LINE = re.compile(rf"(?im)^(\s*(?:{_FIELDS}):\s*)(?![\"'\s])\S.*$")


class _Vault:
    """Every secret that this process has seen: values by fingerprint, and texts to mask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[str, object] = OrderedDict()
        self._texts: OrderedDict[str, None] = OrderedDict()
        self._pattern: re.Pattern[str] | None = None
        # The fingerprint tells nobody else anything: it cannot be compared with a guess without this.
        self._key = secrets.token_bytes(32)

    def after_fork_in_child(self) -> None:
        """Another thread may have held the lock at the moment of a fork."""
        self._lock = threading.Lock()

    def fingerprint(self, value: object) -> str:
        data = value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else None
        if data is None:
            return f"object-{id(value):x}-{secrets.token_hex(8)}"
        return hashlib.blake2b(data, key=self._key, digest_size=16).hexdigest()

    def keep(self, fingerprint: str, value: object) -> None:
        with self._lock:
            self._values[fingerprint] = value
            while len(self._values) > _MAX_REMEMBERED:
                self._values.popitem(last=False)
        self.remember(value)

    def find(self, fingerprint: str) -> tuple[object] | None:
        with self._lock:
            return (self._values[fingerprint],) if fingerprint in self._values else None

    def remember(self, value: object) -> None:
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


_vault = _Vault()
tell_after_fork(_vault)


class Secret:
    """A value that is neither shown nor stored.

    Pickling leaves the value out and puts a keyed hash in its place: unpickled in a process that has seen the value, it
    is found again; elsewhere it is *lost*, and `reveal` says what to do. Only the pickle that starts a child process
    (`multiprocessing` by spawn or forkserver) carries the value; it goes through a pipe that nobody else reads. Copies
    are the object itself.
    """

    __slots__ = ("_fingerprint", "_value")

    def __init__(self, value: object) -> None:
        self._value: tuple[object] | None = (value,)
        self._fingerprint = _vault.fingerprint(value)
        _vault.keep(self._fingerprint, value)

    @property
    def lost(self) -> bool:
        """Whether the value was left behind in another process."""
        return self._value is None

    def reveal(self) -> Any:
        """Returns the value.

        Raises:
            ConfigurationError: It is lost.
        """
        if self._value is None:
            raise ConfigurationError(LOST)
        return self._value[0]

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._fingerprint, other._fingerprint)

    def __hash__(self) -> int:
        return hash(self._fingerprint)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        if self._value is not None and get_spawning_popen() is not None:
            return _restore, (self._fingerprint, self._value)
        return _restore, (self._fingerprint, None)


def _restore(fingerprint: str, value: tuple[object] | None) -> Secret:
    secret = object.__new__(Secret)
    secret._fingerprint = fingerprint
    secret._value = value if value is not None else _vault.find(fingerprint)
    if secret._value is not None:
        _vault.keep(fingerprint, secret._value[0])
    return secret


def hide(value: Any, *, name: str = "") -> Any:
    """Wraps whatever may be a secret in options: all that stands under a name which sounds like one.

    Args:
        value: An option's value, or a mapping or list of them at any depth.
        name: What it is called. ``*key*``, ``*secret*``, ``*token*``, ``*password*``, ``*sas*``, ``*credential*``,
            ``*auth*`` and their like hide text, bytes and objects, and everything in mappings below; numbers, paths and
            callables stay as they are. Under other names only URLs that have a password or a signature in them hide.
    """
    secret = _NAMES.search(name) is not None
    match value:
        case Secret() | None | bool() | int() | float() | os.PathLike():
            return value
        case str() | bytes():
            return Secret(value) if secret or (isinstance(value, str) and redact_url(value) != value) else value
        case Mapping():
            return {key: hide(inner, name=name if secret else str(key)) for key, inner in value.items()}
        case _ if type(value) in _PLAIN:
            return type(value)(hide(inner, name=name) for inner in value)
        case _:
            return Secret(value) if secret and not callable(value) else value


def reveal(value: Any) -> Any:
    """Undoes `hide`, for the client alone.

    Raises:
        ConfigurationError: A secret was lost on the way, in a pickle.
    """
    match value:
        case Secret():
            return value.reveal()
        case Mapping():
            return {key: reveal(inner) for key, inner in value.items()}
        case _ if type(value) in _PLAIN:
            return type(value)(reveal(inner) for inner in value)
        case _:
            return value


def is_lost(value: object) -> bool:
    """Whether this is a secret whose value stayed in another process."""
    return isinstance(value, Secret) and value.lost


def remember(*values: object) -> None:
    """Makes `redact` mask these from now on: keys that a server handed out, say."""
    for value in values:
        _vault.remember(value)


def redact(text: str) -> str:
    """Masks the secrets that this process knows, and what stands where vendors write secrets."""
    pattern = _vault.pattern()
    if pattern is not None:
        text = pattern.sub(MASK, text)
    text = _IN_DICT.sub(rf"\1\2{MASK}\2", text)
    text = _IN_XML.sub(rf"\1{MASK}", text)
    text = _IN_LINE.sub(rf"\1{MASK}", text)
    return redact_url(text)


def redact_url(text: str) -> str:
    """Masks passwords and signatures in the URLs of a text."""
    if "://" not in text and "=" not in text:
        return text
    return _IN_QUERY.sub(rf"\1{MASK}", _USER.sub(f"{MASK}@", text))


def presentable(error: StorageError) -> None:
    """Takes secrets out of an error and of everything that a traceback prints below it, in place.

    A server may repeat a token in its answer (S3 does when it has expired), and clients repeat answers and URLs. The
    frames below hold keys and signed headers in their variables, so they are replaced by a note that names their lines.
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


def shortened(error: ErrorT, *, num_frames: int = 5) -> ErrorT:
    """Returns the error, whose traceback is a note if it has more frames than these: a user's mistake is not in ours.

    Args:
        error: What is raised next, to a user.
        num_frames: How many frames may stay.
    """
    trace, count = error.__traceback__, 0
    while trace is not None:
        trace, count = trace.tb_next, count + 1
    if count > num_frames:
        _drop_frames(error)
    return error


def _drop_frames(error: BaseException) -> None:
    """Replaces a traceback by a note: its frames must not be cleared, for a coroutine may still be suspended in one."""
    lines = []
    trace, error.__traceback__ = error.__traceback__, None
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append(f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    known = any(note.startswith(_RAISED_AT) for note in getattr(error, "__notes__", ()))
    if len(lines) > 1 and not known:  # the first is where the error is raised again
        error.add_note(_RAISED_AT + " > ".join(lines[1:][-_MAX_LINES:]))


def _redacted(error: BaseException) -> BaseException:
    if not _shows_secret(error):
        return error
    error.args = tuple(redact(part) if isinstance(part, str) else part for part in error.args)
    if _shows_secret(error):  # it has its text from somewhere else
        shown = Exception(f"{type(error).__qualname__}: {redact(str(error))}")
        shown.__cause__, shown.__context__ = error.__cause__, error.__context__
        return shown
    return error


def _shows_secret(error: BaseException) -> bool:
    shown = [str(error), repr(error), *getattr(error, "__notes__", ())]
    return any(redact(text) != text for text in shown)
