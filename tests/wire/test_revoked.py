"""Keys that a real server takes away in the middle of an epoch."""

from __future__ import annotations

import pytest

from concurrent_loader.storage.errors import AccessDenied
from concurrent_loader.storage.testing.faults.wire_faults import is_range
from concurrent_loader.storage.testing.servers.minio_users import add_user, disable_user, remove_user

pytestmark = [pytest.mark.s3, pytest.mark.timeout(60)]

ENDS = {"disabled": disable_user, "removed": remove_user}
# Between two requests, never during one: whose user goes while it is being looked at gets any refusal there is.
ALONE = {"in_flight": 1, "hedge": None}


@pytest.fixture
def add(s3_server, canary):
    if s3_server.kind != "minio":
        pytest.skip("only MinIO has users of its own")

    def add():
        user = add_user(s3_server)
        canary.watch(user.secret_access_key)
        return user

    return add


def before_range(number, act):
    """Acts once, before the server sees the range request of that number; harms none."""
    num_ranges = 0

    def script(request):
        nonlocal num_ranges
        num_ranges += is_range(request)
        if num_ranges == number and is_range(request):
            act()
        return ()

    return script


@pytest.mark.parametrize("end", ENDS)
def test_a_user_who_is_revoked_mid_epoch_is_told_so(s3_server, proxy, epochs, add, check_batch, end):
    user = add()
    with epochs.open(user.through(proxy).storage_options(), **ALONE) as dataset:
        proxy.script = before_range(20, lambda: ENDS[end](s3_server, user.access_key_id))
        seen = []
        with pytest.raises(AccessDenied, match="the store does not know the access key") as caught:
            for batch in epochs.loader(dataset, shuffle=False):
                seen += check_batch(batch)
    assert seen == list(range(len(seen)))
    assert 0 < len(seen) < 240
    error = caught.value
    assert error.url == epochs.objects.dataset_url
    assert error.shard == error.key
    assert None not in (error.key, error.start, error.end, error.sample)
    assert error.attempts == 1  # no repetition can change it
    assert user.secret_access_key not in f"{error!r} {error} {error.__cause__!r}"


def test_keys_that_are_rotated_mid_epoch_cost_one_renewal(s3_server, proxy, epochs, add):
    """The old user is gone before anybody here knows of the new one: the refusal is what makes the reader ask."""
    old, new = add(), add()
    current, asked = old, []

    def keys():
        asked.append(current.access_key_id)
        return {"access_key_id": current.access_key_id, "secret_access_key": current.secret_access_key}

    def rotate():
        nonlocal current
        current = new
        remove_user(s3_server, old.access_key_id)

    options = {name: old.through(proxy).storage_options()[name] for name in ("endpoint_url", "region")}
    with epochs.open({**options, "credentials": keys}, **ALONE) as dataset:
        proxy.script = before_range(20, rotate)
        epochs.check(epochs.loader(dataset, shuffle=False))
    assert asked[-1] == new.access_key_id
    assert set(asked[:-1]) == {old.access_key_id}
    remove_user(s3_server, new.access_key_id)
