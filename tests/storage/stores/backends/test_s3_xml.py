from __future__ import annotations

import contextlib
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import ProtocolViolation
from concurrent_loader.storage.stores.backends.s3_xml import read_document

BOMB = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    "<ListBucketResult><Contents><Key>&b;</Key></Contents></ListBucketResult>"
)


def test_a_page():
    document = read_document(
        b'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        b"<IsTruncated>false</IsTruncated>\n<Contents><Key>a&amp;b&#x43;</Key><Owner><ID>me</ID></Owner><Size>1</Size>"
        b"</Contents><Contents><Key>\xc3\xa9</Key><Size/></Contents><KeyCount>2</KeyCount></ListBucketResult>"
    )
    assert document.root == "ListBucketResult"
    assert document.fields == {"IsTruncated": "false", "KeyCount": "2"}
    assert document.entries == [{"Key": "a&bC", "Owner": "", "Size": "1"}, {"Key": "é", "Size": ""}]


def test_prefixes_of_namespaces_are_left_out():
    document = read_document(b'<s:Error xmlns:s="http://x"><s:Code>SlowDown</s:Code></s:Error>')
    assert (document.root, document.fields) == ("Error", {"Code": "SlowDown"})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (BOMB.encode(), "document type"),
        (b"<!DOCTYPE ListBucketResult><ListBucketResult/>", "document type"),
        (b"<ListBucketResult>&unknown;</ListBucketResult>", "not well-formed XML"),
        (BOMB.encode("utf-16"), "document type"),
        (f'<?xml version="1.0" encoding="utf-16"?>{BOMB}'.encode("utf-16"), "document type"),
        (b"", "not well-formed XML"),
        (b"hello", "not well-formed XML"),
        (b"<a><b></a>", "not well-formed XML"),
        (b"<a/><a/>", "not well-formed XML"),
        (b"<a>\xff</a>", "not well-formed XML"),
        (b"<a>" * 100_000, "too deeply"),
    ],
    ids=lambda value: "body" if isinstance(value, bytes) else value,
)
def test_what_is_refused(body, said):
    with pytest.raises(ProtocolViolation, match=said):
        read_document(body)


@given(st.binary(max_size=200) | st.text("<>/&;ab !?x#[]=\"'", max_size=60).map(str.encode))
def test_any_bytes_are_a_document_or_a_violation(body):
    with contextlib.suppress(ProtocolViolation):
        document = read_document(body)
        assert document.root == ET.fromstring(body).tag.rpartition(":")[2].rpartition("}")[2]
