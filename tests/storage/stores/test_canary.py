"""No secret in anything that a program with everything switched on prints: logs, reprs, tracebacks, pickles."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("canary_program.py")


@pytest.mark.s3
def test_nothing_shows_a_secret(s3_server, s3_bucket, canary):
    assert s3_server.kind != "moto", "moto checks no credentials: install Go or MinIO"
    wrong_secret, wrong_token = secrets.token_hex(20), secrets.token_hex(40)
    canary.watch(wrong_secret, wrong_token)
    given = {
        "url": s3_bucket.url,
        "options": s3_bucket.storage_options,
        "wrong_secret": wrong_secret,
        "wrong_token": wrong_token,
    }
    said, tell = os.pipe()
    received: list[bytes] = []

    def read():
        with os.fdopen(said, "rb") as lines:
            received.extend(lines)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        done = subprocess.run(
            [sys.executable, PROGRAM, str(tell)],
            env={**os.environ, "CANARY": json.dumps(given), "RUST_LOG": "trace", "RUST_BACKTRACE": "full"},
            pass_fds=[tell],
            capture_output=True,
            text=True,
            timeout=100,
        )
    finally:
        os.close(tell)
        reading.join()
    handed_out = [line.decode().strip() for line in received]
    shown = done.stdout + done.stderr
    hidden = [s3_bucket.storage_options["secret_access_key"], wrong_secret, wrong_token, *handed_out]
    leaks = [line for line in shown.splitlines() if any(secret in line for secret in hidden)]
    for number, secret in enumerate(hidden):
        leaks = [line.replace(secret, f"(secret {number})") for line in leaks]
    assert leaks == []
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(handed_out) == 6  # the STS was asked once for each client
    # It would have shown them: the logs are there, with the places where they stood.
    assert shown.count("***") > 50
    for place in ("botocore.parsers", "botocore.auth", "<SecretAccessKey>***", "x-amz-security-token:***"):
        assert place in shown, place
