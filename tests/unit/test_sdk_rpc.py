"""What a failed connection is called, by what gRPC says and by whether it worked before."""

from __future__ import annotations

import random

import pytest

from headgate.sdk.addresses import Address, Rotation
from headgate.sdk.rpc import not_connected

PLAIN, TLS = Address("127.0.0.1:7070"), Address("queue.example:7070", tls=True)


@pytest.mark.parametrize("address", [PLAIN, TLS], ids=["plain", "tls"])
def test_a_connection_that_worked_before_gets_no_advice_on_tls(address: Address) -> None:
    """A server that is killed ends its connections as one does that expects TLS."""
    assert "TLS" in str(not_connected(address, "Socket closed"))
    lost = str(not_connected(address, "Socket closed", answered=True))
    assert "TLS" not in lost
    assert "(connection closed)" in lost


def test_an_address_has_answered_once_a_server_did() -> None:
    rotation = Rotation((PLAIN, TLS), chance=random.Random(1))
    first = rotation.current
    assert not rotation.has_answered(first)
    rotation.succeeded()
    rotation.move_on()
    assert rotation.has_answered(first)
    assert not rotation.has_answered(rotation.current)


def test_attempts_to_connect_may_take_longer_after_some_failed_rounds() -> None:
    rotation = Rotation((PLAIN, TLS), chance=random.Random(1))
    seen: list[float] = []
    waits: list[float] = []
    for _ in range(7):
        for _ in range(2):
            seen.append(rotation.connect_seconds)
            waits.append(rotation.move_on())
    assert seen == [3, 3, 3, 3, 3, 3, 3, 3, 6, 6, 12, 12, 20, 20]
    assert waits[::2] == [0] * 7, "one round is made without waiting"
    rounds = waits[1::2]
    for number, wait in enumerate(rounds):
        assert 0.5 <= wait / min(5.0, 0.1 * 2**number) <= 1, "doubled, with jitter"
    rotation.succeeded()
    assert rotation.connect_seconds == 3


def test_an_unknown_host_is_named_without_the_text_of_grpc() -> None:
    details = (
        "errors resolving nosuch.invalid:7070: [field:hostname lookup error:address lookup failed for "
        "nosuch.invalid:7070: Domain name not found]"
    )
    text = str(not_connected(Address("nosuch.invalid:7070"), details))
    assert text.startswith('cannot resolve the host name "nosuch.invalid"')
    assert "[" not in text
