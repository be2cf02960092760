"""A life of a key that is over already is refused everywhere: it must not become a key without an end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.api.http.request import decoded
from headgate.api.http.routes.keys import NewKeyIn
from headgate.domain.errors import InvalidInput
from headgate.sdk import Headgate


@pytest.mark.parametrize("life", [0, 0.5, -3600, timedelta(0), timedelta(days=-1)])
async def test_the_sdk_refuses_a_life_below_a_second_before_anything_is_sent(life: float | timedelta) -> None:
    keys = Headgate("127.0.0.1:1").admin.keys  # no one listens there: it would be NotConnected
    with pytest.raises(InvalidInput, match="from 1 second to 3650 days") as caught:
        await keys.create("short", scopes=["read"], expires_in=life)
    assert caught.value.field == "expires_in"


@pytest.mark.parametrize("milliseconds", [0, 999])
def test_rest_refuses_a_life_below_a_second(milliseconds: int) -> None:
    body = b'{"name": "short", "scopes": ["read"], "expires_in_ms": %d}' % milliseconds
    with pytest.raises(InvalidInput) as caught:
        decoded(body, NewKeyIn)
    assert caught.value.field == "expires_in_ms"
