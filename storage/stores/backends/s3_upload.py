"""Uploads large objects to S3 in parts, and aborts uploads that fail or are cancelled."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from concurrent_loader.storage.errors import ProtocolViolation, StorageError
from concurrent_loader.storage.stores.aws.sigv4 import EMPTY_SHA256
from concurrent_loader.storage.stores.backends.s3_client import S3Client
from concurrent_loader.storage.stores.http.response import HttpResponse

__all__ = ["S3Upload", "digest_of"]

_log = logging.getLogger(__name__)
_ABORT_S = 10.0
# Hashing less is faster than starting a thread.
_INLINE_BYTES = 256 << 10


async def digest_of(data: memoryview) -> str:
    """Returns the SHA-256 in hexadecimal digits. Hashes large data in a thread."""
    if len(data) == 0:
        return EMPTY_SHA256
    if len(data) <= _INLINE_BYTES:
        return hashlib.sha256(data).hexdigest()
    return (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()


class S3Upload:
    """Multipart upload of one object.

    Args:
        requests: Requests to the bucket.
        key: Key in the bucket.
        data: Bytes of the object.
        part_bytes: Size of a part.
        parts_in_flight: Maximum number of parts sent at a time.
        url: URL of the store, for log lines.
    """

    def __init__(
        self, requests: S3Client, key: str, data: memoryview, *, part_bytes: int, parts_in_flight: int, url: str
    ) -> None:
        self._requests = requests
        self._key = key
        self._data = data
        self._part_bytes = part_bytes
        self._parts_in_flight = parts_in_flight
        self._url = url
        self._etags: dict[int, str] = {}
        self._is_given_up = False

    async def run(self, condition: Mapping[str, str]) -> str | None:
        """Uploads the object, and returns its ETag.

        Args:
            condition: Conditional headers of the request that completes the upload.

        Cancellation: Waits up to 10 s for parts in flight, because a part that arrives after the abort would remain,
            and then up to 10 s for the abort.
        """
        upload_id = await self._begin()
        parts = iter(enumerate(range(0, len(self._data), self._part_bytes), start=1))
        sending = [asyncio.ensure_future(self._send_parts(upload_id, parts)) for _ in range(self._parts_in_flight)]
        try:
            done, _ = await asyncio.wait(sending, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            return await self._complete(upload_id, condition)
        except BaseException:
            self._is_given_up = True
            await self._end(sending)
            await self._abort(upload_id)
            raise

    async def _send_parts(self, upload_id: str, parts: Iterator[tuple[int, int]]) -> None:
        for number, start in parts:
            part = self._data[start : start + self._part_bytes]
            digest = await digest_of(part)
            if self._is_given_up:
                return
            query = f"partNumber={number}&uploadId={quote(upload_id, safe='')}"
            response = await self._requests.send("PUT", self._key, query=query, body=part, digest=digest)
            await self._expect(response, 200)
            await self._requests.read_body(response)
            if (etag := response.headers.get("etag")) is None:
                raise ProtocolViolation("the response to a part has no ETag")
            self._etags[number] = etag

    async def _complete(self, upload_id: str, condition: Mapping[str, str]) -> str | None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
            for number, etag in sorted(self._etags.items())
        )
        body = memoryview(f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode())
        response = await self._requests.send(
            "POST",
            self._key,
            query=f"uploadId={quote(upload_id, safe='')}",
            headers=condition,
            body=body,
            digest=await digest_of(body),
            idempotent=False,
        )
        await self._expect(response, 200, writing=bool(condition))
        document = await self._requests.read_document(response, root="CompleteMultipartUploadResult")
        return document.fields.get("ETag")

    async def _begin(self) -> str:
        """Starts an upload. A cancelled caller waits for the upload ID, which is needed for the abort."""
        beginning = asyncio.ensure_future(self._create())
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await self._end([beginning])
            if not beginning.cancelled() and beginning.exception() is None:
                await self._abort(beginning.result())
            raise

    async def _create(self) -> str:
        response = await self._requests.send(
            "POST", self._key, query="uploads=", body=memoryview(b""), idempotent=False
        )
        await self._expect(response, 200)
        document = await self._requests.read_document(response, root="InitiateMultipartUploadResult")
        if not (upload_id := document.fields.get("UploadId")):
            raise ProtocolViolation("the response does not name the upload")
        return upload_id

    async def _abort(self, upload_id: str) -> None:
        """Aborts the upload, so that its parts cost no storage; on failure the bucket's lifecycle rule must do it."""
        try:
            async with asyncio.timeout(_ABORT_S):
                response = await self._requests.send("DELETE", self._key, query=f"uploadId={quote(upload_id, safe='')}")
                await self._expect(response, 200, 204, 404)
                await self._requests.read_body(response)
        except (StorageError, TimeoutError) as error:
            _log.warning(
                "%s: the upload of %r could not be aborted, so its parts remain: %s", self._url, self._key, error
            )

    async def _end(self, tasks: Sequence[asyncio.Future[Any]]) -> None:
        """Waits for tasks, up to 10 s, and then cancels them."""
        try:
            await asyncio.wait(tasks, timeout=_ABORT_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _expect(self, response: HttpResponse, *statuses: int, writing: bool = False) -> None:
        if response.status not in statuses:
            raise await self._requests.refused(response, writing=writing)
