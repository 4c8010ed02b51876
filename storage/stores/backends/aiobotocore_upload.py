"""Multipart uploads by aiobotocore: bounded parts in flight, and nothing left behind by an upload that ends early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

import botocore.exceptions

from concurrent_loader.storage.stores.backends.aiobotocore_errors import UNREADABLE, error_code
from concurrent_loader.storage.stores.options import S3Options

__all__ = ["MultipartUpload", "body_of"]

_log = logging.getLogger(__name__)
_ABORT_TIMEOUT_S = 10
_ABORT_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)  # after an abort of an upload that still has parts


class MultipartUpload:
    """One object's upload.

    Args:
        client: aiobotocore client.
        target: ``Bucket`` and ``Key`` of the object.
        url: URL of the store, for messages.
        options: Options of the store: size of a part and parts in flight.
    """

    def __init__(self, client: Any, target: dict[str, Any], *, url: str, options: S3Options) -> None:
        self._client = client
        self._target = target
        self._url = url
        self._options = options

    async def put(self, data: memoryview, condition: dict[str, str]) -> Mapping[str, Any]:
        """Uploads an object in parts, as many at once as the options say.

        Args:
            data: The whole object.
            condition: Headers of the last request, such as ``IfNoneMatch``.

        Returns:
            The server's response to the last request.

        Cancellation: Aborts the upload, in 10 s for the parts in flight and 10 s for the abort at most.
        """
        client = self._client
        upload = await self._begin()
        places = asyncio.Semaphore(self._options.parts_in_flight)
        part_bytes = self._options.part_bytes_for(len(data))

        in_flight: set[asyncio.Task[Mapping[str, Any]]] = set()

        async def put_part(number: int, part: memoryview) -> dict[str, object]:
            async with places:
                sending = asyncio.create_task(client.upload_part(**upload, PartNumber=number, Body=body_of(part)))
                in_flight.add(sending)
                response = await asyncio.shield(sending)
                in_flight.discard(sending)
            return {"PartNumber": number, "ETag": response["ETag"]}

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(put_part(number, data[start : start + part_bytes]))
                    for number, start in enumerate(range(0, len(data), part_bytes), start=1)
                ]
            parts = [task.result() for task in tasks]
            completed: Mapping[str, Any] = await client.complete_multipart_upload(
                **upload, MultipartUpload={"Parts": parts}, **condition
            )
        except BaseException as error:
            await _finish(self._give_up(upload, in_flight))
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from error
            raise
        return completed

    async def _begin(self) -> dict[str, str]:
        """Begins an upload; who is cancelled meanwhile waits for its number, since it could not be given up without."""
        beginning = asyncio.ensure_future(self._client.create_multipart_upload(**self._target))
        try:
            created = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            try:
                await asyncio.wait([beginning], timeout=_ABORT_TIMEOUT_S)
            finally:
                beginning.cancel()  # of what is done that is nothing
            if beginning.done() and not beginning.cancelled() and beginning.exception() is None:
                upload = {**self._target, "UploadId": beginning.result()["UploadId"]}
                await _finish(self._give_up(upload, set()))
            raise
        return {**self._target, "UploadId": created["UploadId"]}

    async def _give_up(self, upload: dict[str, str], in_flight: set[asyncio.Task[Mapping[str, Any]]]) -> None:
        """Aborts an upload, so that its parts cost no storage; on failure the bucket's lifecycle rule must do it.

        A part that the server is still writing may be stored after the abort. So this waits for the parts in flight
        first, and repeats the abort while the server lists the upload or parts of it, as S3's documentation asks.
        """
        try:
            if in_flight:
                _, late = await asyncio.wait(in_flight, timeout=_ABORT_TIMEOUT_S)
                for task in late:
                    task.cancel()
                await asyncio.gather(*in_flight, return_exceptions=True)
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                for pause_s in _ABORT_PAUSES_S:
                    await self._client.abort_multipart_upload(**upload)
                    if not in_flight or not await self._has_parts(upload):
                        return
                    await asyncio.sleep(pause_s)
            _log.warning("%s: the upload of %r could not be aborted: it still has parts", self._url, upload["Key"])
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, OSError, *UNREADABLE) as error:
            if error_code(error) != "NoSuchUpload":
                _log.warning(
                    "%s: the upload of %r could not be aborted, so its parts remain: %s",
                    self._url,
                    upload["Key"],
                    error,
                )

    async def _has_parts(self, upload: dict[str, str]) -> bool:
        try:
            listed = await self._client.list_parts(**upload, MaxParts=1)
        except botocore.exceptions.ClientError as error:
            if error_code(error) in (
                "NoSuchUpload",
                "AccessDenied",
            ):  # a caller without the right to list cannot know more
                return False
            raise
        return bool(listed.get("Parts"))


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Waits for work that has a bound of its own, through cancellations, and raises the last of them then."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


def body_of(data: memoryview) -> bytes:
    """Returns the bytes of a view for botocore, which takes nothing else; a copy only if the view is not a whole
    object.
    """
    whole = data.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(data) else bytes(data)
