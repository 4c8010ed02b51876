"""What `test_canary` runs in a process of its own: all that can show a secret, with everything logged at level DEBUG.

Usage: python canary_program.py FD, where FD takes the keys that the STS hands out. The bucket, the options and the
wrong keys come in the environment, as JSON.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import pickle
import sys
import traceback
from datetime import datetime

import botocore.session

from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.stores import open_store

CLIENTS = ["native", "aiobotocore", "fsspec"]
GIVEN = json.loads(os.environ.pop("CANARY"))
URL, OPTIONS = GIVEN["url"], GIVEN["options"]


def assumed():
    """A credentials function as users write them: it asks an STS, whose answer botocore logs."""
    client = botocore.session.Session().create_client(
        "sts",
        endpoint_url=OPTIONS["endpoint_url"],
        region_name=OPTIONS["region"],
        aws_access_key_id=OPTIONS["access_key_id"],
        aws_secret_access_key=OPTIONS["secret_access_key"],
    )
    answer = client.assume_role(RoleArn="arn:aws:iam::1:role/any", RoleSessionName="any", DurationSeconds=900)
    keys = answer["Credentials"]
    expires_at: datetime = keys["Expiration"]
    # For the test to look for them.
    os.write(int(sys.argv[1]), f"{keys['SecretAccessKey']}\n{keys['SessionToken']}\n".encode())
    return {
        "access_key_id": keys["AccessKeyId"],
        "secret_access_key": keys["SecretAccessKey"],
        "session_token": keys["SessionToken"],
        "expires_at": expires_at,
    }


def refuse():
    raise RuntimeError(f"no luck with {OPTIONS['secret_access_key']}")


def show(thing):
    print(repr(thing), str(thing), repr(copy.copy(thing)), repr(pickle.dumps(thing)), vars(thing))


async def use(url, client, options, *, fails=False):
    print(f"-- {client} {url} {sorted(options)}")
    store = open_store(url, client=client, **options)
    show(store)
    try:
        async with store:
            await store.put("key", b"data")
            await FetchEngine(store).fetch("key", 0, 2)
            [meta async for meta in store.list()]
            await store.head("key")
            await store.delete("key")
            show(store)
    except StorageError as error:
        if not fails:
            raise
        logging.getLogger("storage.canary").exception("it failed")
        print(traceback.format_exc(), repr(error), str(error), repr(pickle.dumps(error)))
        below = error.__context__
        while below is not None:
            print(repr(below), str(below), below.args)
            below = below.__context__
    else:
        if fails:
            raise AssertionError("it was expected to fail")


async def main():
    explicit = {name: OPTIONS[name] for name in ("endpoint_url", "region")}
    for client in CLIENTS:
        await use(URL, client, OPTIONS)
        await use(URL, client, {**explicit, "credentials": assumed})
        await use(URL, client, {**explicit, "credentials": refuse}, fails=True)
        await use(URL, client, {**OPTIONS, "access_key_id": "nobody-knows-me"}, fails=True)
        await use(URL, client, {**OPTIONS, "secret_access_key": GIVEN["wrong_secret"]}, fails=True)
        await use(URL, client, {**OPTIONS, "session_token": GIVEN["wrong_token"]}, fails=True)
        await use("s3://there-is-no-such-bucket", client, OPTIONS, fails=True)
        await use(URL, client, {**OPTIONS, "endpoint_url": "http://127.0.0.1:1"}, fails=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    asyncio.run(main(), debug=True)
