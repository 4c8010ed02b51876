from __future__ import annotations

import copy
import multiprocessing
import pickle
import re
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage import redaction
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.redaction import MASK
from concurrent_loader.storage.secret import Secret, hide, is_lost, reveal
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.stores.options import AzureOptions, GoogleOptions, S3Options

VALUE = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzEXAMPLE"
QUOTED = quote(VALUE, safe="")


@pytest.fixture(autouse=True, scope="module")
def forgets_secrets():
    """Forgets this module's secrets at its end.

    Hypothesis tries texts that it finds in the source code, such as 127.0.0.1, and errors of later tests show them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redaction, "_known", redaction._KnownSecrets())
        yield


@contextmanager
def starting_a_child():
    """What multiprocessing sets while it writes a new child's arguments to its pipe."""
    context = multiprocessing.context
    context.set_spawning_popen(object())
    try:
        yield
    finally:
        context.set_spawning_popen(None)


def shown(*things):
    return "".join(f"{thing!r}{thing!s}{thing}" for thing in things)


def elsewhere(data):
    """Unpickles in another process; says what `reveal` does there."""
    code = """
import pickle, sys
from concurrent_loader.storage.errors import ConfigurationError
thing = pickle.loads(sys.stdin.buffer.read())
try:
    print("revealed", thing.reveal())
except ConfigurationError as error:
    print(repr(thing), error)
"""
    return subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True).stdout.decode()


def test_a_secret_does_not_show_itself():
    assert VALUE not in shown(Secret(VALUE), [Secret(VALUE)], {"key": Secret(VALUE)}) + f"{Secret(VALUE):>40}"
    assert Secret(VALUE).reveal() == VALUE


@pytest.mark.processes
def test_a_pickled_secret_is_found_again_in_this_process_and_lost_elsewhere():
    data = pickle.dumps(Secret(VALUE))
    assert VALUE.encode() not in data
    assert pickle.loads(data).reveal() == VALUE
    said = elsewhere(data)
    assert said.startswith(MASK)
    assert "with_storage_options" in said


def test_what_is_lost_stays_lost_without_complaint_until_it_is_needed():
    data = pickle.dumps(Secret("a value of this test alone"))
    lost = pickle.loads(re.sub(rb"[0-9a-f]{32}", b"0" * 32, data))
    assert is_lost(lost)
    assert is_lost(pickle.loads(pickle.dumps(lost)))
    with starting_a_child():
        assert is_lost(pickle.loads(pickle.dumps(lost)))
    with pytest.raises(ConfigurationError, match="again"):
        lost.reveal()


@pytest.mark.processes
def test_a_child_that_is_being_started_gets_the_value():
    with starting_a_child():
        data = pickle.dumps(Secret(VALUE))
    assert elsewhere(data).strip() == f"revealed {VALUE}"


@pytest.mark.processes
def test_fingerprints_cannot_be_compared_between_processes():
    code = """
import pickle, sys
from concurrent_loader.storage.secret import Secret
sys.stdout.buffer.write(pickle.dumps(Secret('x' * 9)))
"""
    one, two = (subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in "ab")
    assert one != two


def test_copies_are_the_same():
    secret = Secret(VALUE)
    assert copy.copy(secret) is copy.deepcopy(secret) is secret
    assert secret == Secret(VALUE) != Secret("another")
    assert hash(secret) == hash(Secret(VALUE))
    assert secret != VALUE


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ({"key": VALUE, "anon": False}, True),
        ({"secret": VALUE, "config_kwargs": {"retries": 3}}, True),
        ({"client_kwargs": {"aws_secret_access_key": VALUE}}, True),
        ({"token": {"refresh": {"x": [VALUE]}}}, True),
        ({"headers": {"Authorization": f"Bearer {VALUE}"}}, True),
        ({"connection_string": f"AccountName=a;AccountKey={VALUE}"}, True),
        ({"sas_token": VALUE.encode()}, True),
        ({"proxy": f"http://user:{QUOTED}@proxy"}, True),
        ({"urls": [f"https://h/a?X-Amz-Signature={VALUE}"]}, True),
        ({"credential": type("Credential", (), {"__repr__": lambda self: VALUE})()}, True),
        ({"region": VALUE, "max_connections": 3, "list_page_keys": 7, "token": None}, False),
    ],
)
def test_what_sounds_like_a_secret_is_hidden(options, hidden):
    wrapped = hide(options)
    assert (VALUE not in shown(wrapped)) is hidden
    assert reveal(wrapped) == options
    assert reveal(hide(wrapped)) == options


def test_callables_and_paths_are_no_secrets(tmp_path):
    assert hide({"credentials": print, "private_key": tmp_path}) == {"credentials": print, "private_key": tmp_path}


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)
    )
)
def test_revealing_undoes_hiding(options):
    assert reveal(hide(options, name="options")) == options
    assert reveal(hide(options, name="secret")) == options


OPTIONS = [
    S3Options(access_key_id=VALUE, secret_access_key=VALUE, session_token=VALUE),
    S3Options(credentials=lambda held=VALUE: held),
    GoogleOptions(service_account_key=VALUE, bearer_token=VALUE),
    AzureOptions(account_key=VALUE, sas_key=VALUE, bearer_token=VALUE, client_secret=VALUE),
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: type(options).__name__)
def test_options_do_not_show_secrets(options):
    assert VALUE not in shown(options)
    assert VALUE not in shown(copy.copy(options), copy.deepcopy(options))


@pytest.mark.parametrize(
    ("url", "client", "options"),
    [
        ("s3://bucket", client, {"access_key_id": "id" * 9, "secret_access_key": VALUE, "session_token": VALUE})
        for client in ("native", "aiobotocore", "fsspec")
    ]
    + [
        ("s3://bucket", "fsspec", {"key": "id", "secret": VALUE}),
        ("gs://bucket", "auto", {"bearer_token": VALUE}),
        ("az://bucket", "auto", {"account_name": "a", "account_key": VALUE}),
        ("ftp://host/folder", "auto", {"username": "user", "password": VALUE}),
        ("https://host", "auto", {"client_kwargs": {"headers": {"Authorization": VALUE}}}),
    ],
)
def test_stores_show_and_pickle_no_secret(url, client, options):
    store = open_store(url, client=client, **options)
    data = pickle.dumps(store)
    assert not any(form.encode() in data for form in (VALUE, QUOTED))
    assert not any(form in shown(store, store.url, copy.copy(store)) for form in (VALUE, QUOTED))
    again = pickle.loads(data)
    assert (type(again), again.url) == (type(store), store.url)
    with starting_a_child():
        assert any(form.encode() in pickle.dumps(store) for form in (VALUE, QUOTED))
