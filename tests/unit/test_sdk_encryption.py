"""Encryption in the client: what leaves the program is ciphertext, bound to its job, readable by its keys only."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import (
    DecryptionFailed,
    Encryption,
    Headgate,
    InvalidInput,
    Job,
    JobDead,
    MissingKey,
    SyncHandle,
    TooLarge,
)
from headgate.api.http.codec import media_type_of
from headgate.domain import limits
from headgate.domain.envelope import MAGIC, content_type_of, described, description, from_text, read_envelope
from headgate.domain.fingerprint import group_of
from headgate.domain.redaction import Redaction
from headgate.sdk.encryption import KEYS_VARIABLE, Purpose
from headgate.sdk.ids import new_id_maker
from headgate.sdk.options import prepared
from headgate.sdk.outcomes import failure, sealed_failure
from headgate.wire import jobs_pb2
from tests.support.fake_server import fake_server

OLD, NEW = Encryption.new_key(), Encryption.new_key()
ONE, OTHER = uuid4().bytes, uuid4().bytes
SECRET = "4111 1111"


def old() -> Encryption:
    return Encryption({"old": OLD}, write="old")


def new() -> Encryption:
    return Encryption({"new": NEW, "old": OLD}, write="new")


# --- bodies


@given(body=st.binary(max_size=300), purpose=st.sampled_from(Purpose), job_id=st.sampled_from([b"", ONE]))
def test_what_is_sealed_can_be_opened_and_not_read(body: bytes, purpose: Purpose, job_id: bytes) -> None:
    keys = old()
    sealed = keys.seal(body, purpose, job_id)
    assert keys.open(sealed, purpose, ONE, what="it") == body
    assert len(body) < 8 or body not in sealed
    assert sealed.startswith(MAGIC)
    assert keys.seal(body, purpose, job_id) != sealed  # equal bodies do not look equal


def test_a_body_of_another_job_or_of_another_kind_is_refused() -> None:
    keys = old()
    sealed = keys.seal(b"refund", Purpose.PAYLOAD, ONE)
    with pytest.raises(DecryptionFailed, match=r'"old".*another job'):
        keys.open(sealed, Purpose.PAYLOAD, OTHER, what="the payload")
    with pytest.raises(DecryptionFailed):
        keys.open(sealed, Purpose.RESULT, ONE, what="the result")


@pytest.mark.parametrize("where", ["bound", "key id", "salt", "first", "tag"])
def test_a_body_that_was_changed_is_refused(where: str) -> None:
    keys = Encryption({"old": OLD, "olc": OLD}, write="old")
    sealed = bytearray(keys.seal(b"refund", Purpose.PAYLOAD, ONE))
    at = {"bound": 5, "key id": 9, "salt": 12, "first": 34, "tag": -1}[where]
    sealed[at] ^= 1 if where != "key id" else ord("d") ^ ord("c")
    with pytest.raises(DecryptionFailed):
        keys.open(bytes(sealed), Purpose.PAYLOAD, ONE, what="the payload")


@pytest.mark.parametrize(("at", "value"), [(4, 2), (5, 2)])
def test_a_body_in_the_form_of_a_later_release_says_that_this_one_is_too_old(at: int, value: int) -> None:
    sealed = bytearray(old().seal(b"refund", Purpose.PAYLOAD, ONE))
    sealed[at] = value
    with pytest.raises(DecryptionFailed, match="upgrade headgate"):
        old().open(bytes(sealed), Purpose.PAYLOAD, ONE, what="the payload")
    assert "unknown version" in description(bytes(sealed))


def test_a_body_without_a_whole_tag_is_no_envelope() -> None:
    empty = old().seal(b"", Purpose.PAYLOAD, ONE)
    assert read_envelope(empty) is not None
    assert read_envelope(empty[:-1]) is None


def test_a_key_of_another_value_fails_and_one_that_is_missing_is_named() -> None:
    sealed = old().seal(b"x", Purpose.PAYLOAD, ONE)
    with pytest.raises(DecryptionFailed, match="another value"):
        Encryption({"old": NEW}, write="old").open(sealed, Purpose.PAYLOAD, ONE, what="the payload")
    with pytest.raises(MissingKey, match='the payload is encrypted with the key "old"') as caught:
        Encryption({"new": NEW}, write="new").open(sealed, Purpose.PAYLOAD, ONE, what="the payload")
    assert caught.value.key_id == "old"


def test_after_a_rotation_old_bodies_are_read_and_new_ones_have_the_new_key() -> None:
    sealed = old().seal(b"x", Purpose.PAYLOAD, ONE)
    assert new().open(sealed, Purpose.PAYLOAD, ONE, what="it") == b"x"
    envelope = read_envelope(new().seal(b"x", Purpose.PAYLOAD, ONE))
    assert envelope is not None
    assert (envelope.key_id, envelope.bound) == ("new", True)


@given(body=st.binary(max_size=200))
def test_no_bytes_make_the_parser_of_envelopes_fail(body: bytes) -> None:
    read_envelope(body)
    description(MAGIC + body)
    with pytest.raises((DecryptionFailed, MissingKey)):
        old().open(MAGIC + body, Purpose.PAYLOAD, ONE, what="it")


def test_plain_bodies_are_returned_as_they_are_unless_they_are_refused() -> None:
    assert old().open_payload(b'{"a":1}', ONE) == b'{"a":1}'
    strict = Encryption({"old": OLD}, write="old", accept_plain=False)
    with pytest.raises(DecryptionFailed, match="not encrypted"):
        strict.open_payload(b'{"a":1}', ONE)


# --- submits


@pytest.mark.parametrize(
    ("options", "bound", "repeatable"),
    [
        ({}, True, False),
        ({"id": str(new_id_maker().next_id())}, True, True),
        ({"key": "k"}, False, True),
        ({"unique": "u"}, False, True),
    ],
)
def test_a_submit_that_can_be_repeated_is_the_same_bytes_again(
    options: dict[str, str], bound: bool, repeatable: bool
) -> None:
    keys, made = old(), prepared(**options)
    first, second = (keys.seal_payloads([b"x"], [ONE], made)[0] for _ in range(2))
    assert (first == second) == repeatable
    envelope = read_envelope(first)
    assert envelope is not None
    assert envelope.bound == bound
    assert keys.seal_payloads([b"y"], [ONE], made)[0] != first
    other_job = keys.seal_payloads([b"x"], [OTHER], made)[0]
    assert (other_job == first) == (not bound)  # by its key, a repeated submit has another new id


def test_two_keys_of_submits_do_not_show_that_their_payloads_are_equal() -> None:
    keys = old()
    bodies = [keys.seal_payloads([b"x"], [ONE], prepared(key=name))[0] for name in ("a", "b")]
    assert bodies[0] != bodies[1]


def test_a_schedule_that_is_put_again_is_the_same_bytes_and_two_do_not_show_that_they_send_the_same() -> None:
    keys = old()
    first, again, other = (keys.seal_template(b"{}", name=name) for name in ("night", "night", "day"))
    assert first == again
    assert first != other


def test_a_payload_that_is_too_large_with_its_envelope_is_refused_before_it_is_sent() -> None:
    with pytest.raises(TooLarge, match=r"payload: .* over the limit of 1048576 bytes; encryption adds"):
        old().seal_payloads([b"x" * limits.PAYLOAD_MAX_BYTES], [ONE], prepared())


# --- errors


def test_errors_keep_their_type_and_their_group_and_fit_where_they_are_stored() -> None:
    keys = old()
    texts = []
    for number in range(2):
        message = f"card {SECRET} {number} " + "ü" * 5_000
        outcome = sealed_failure(failure("app.Refused", message, trace="Traceback\n" * 20_000), keys, ONE)
        last_error = f"{outcome.failed.type}: {outcome.failed.message}"
        assert len(last_error) <= limits.LAST_ERROR_MAX_CHARS
        assert len(outcome.failed.traceback) <= limits.ERROR_TRACEBACK_MAX_CHARS
        assert "4111" not in last_error + outcome.failed.traceback
        assert keys.open_text(last_error, ONE).startswith(f"app.Refused: card {SECRET} {number} ü")
        assert keys.open_text(outcome.failed.traceback, ONE).startswith("Traceback\nTraceback")
        texts.append(last_error)
    assert texts[0] != texts[1]
    assert {group_of(text).title for text in texts} == {"app.Refused: <encrypted>"}
    assert described(texts[0]).startswith("app.Refused: (encrypted, key old, ")
    assert Encryption({"new": NEW}, write="new").open_text(texts[0], ONE) == texts[0]  # without the key: as it is


def test_errors_can_be_left_as_they_are() -> None:
    keys = Encryption({"old": OLD}, write="old", errors=False)
    assert sealed_failure(failure("E", "plain"), keys, ONE).failed.message == "plain"


def test_a_text_that_only_looks_encrypted_is_left_alone() -> None:
    for text in ("encrypted:", "encrypted: yes", "encrypted:" + "A" * 60, "x encrypted:abc"):
        assert old().open_text(text, ONE) == text
        assert from_text(text) is None
        assert described(text) == text


# --- the keys


@pytest.mark.parametrize(
    ("keys", "write", "says"),
    [
        ({"a": "short"}, "a", '"a" is not a key of 32 bytes'),
        ({"a": b"x" * 31}, "a", '"a" is not a key of 32 bytes'),
        ({"a b": OLD}, "a b", "has an id that is not"),
        ({"a": OLD}, "b", "write: is not one of the keys, got 'b'; keys are a"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_and_never_shown(keys: dict[str, str], write: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        Encryption(keys, write=write)
    assert OLD not in str(caught.value)


def test_keys_are_read_from_the_environment_and_the_first_one_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, f"new:{NEW}, old:{OLD}")
    made = Headgate()._connection.encryption
    assert repr(made) == "<Encryption write=new keys=new, old>"
    monkeypatch.setenv(KEYS_VARIABLE, "no-colon")
    with pytest.raises(InvalidInput, match=KEYS_VARIABLE) as caught:
        Headgate()
    assert "no-colon" not in str(caught.value)
    monkeypatch.delenv(KEYS_VARIABLE)
    assert Headgate()._connection.encryption is None


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(InvalidInput, match=r'pip install "headgate\[encryption\]"'):
        old()


# --- in a box


def shop(encryption: Encryption | None) -> Headgate:
    hg = Headgate(encryption=encryption)

    @hg.job("charge", max_attempts=2, run_in="thread")
    def charge(card: str, fails: bool = False, *, job: Job) -> str:
        assert b"card" in job.payload
        if fails:
            raise ValueError(f"card {card} is refused")
        return f"charged {card}"

    return hg


async def test_a_box_stores_ciphertext_and_handlers_see_plain_values() -> None:
    hg = shop(old())
    with hg.testing() as box:
        handle = await hg.tasks["charge"].submit(SECRET)
        refused = await hg.tasks["charge"].submit(SECRET, fails=True)
        drained = await box.drain()
        (job, bad) = box.of("charge")
        assert b"4111" not in job.stored_payload + job._stored.result
        assert (job.arguments["card"], job.result) == (SECRET, f"charged {SECRET}")
        assert await handle.result() == f"charged {SECRET}"
        info = await hg.get(handle.id, payload=True, result=True)
        assert SECRET.encode() in info.payload
        assert "4111" not in bad._stored.last_error
        assert bad.last_error == drained.failed[-1].message == f"ValueError: card {SECRET} is refused"
        with pytest.raises(JobDead, match=f"ValueError: card {SECRET} is refused"):
            await refused.result()


@pytest.mark.parametrize("blocking", [False, True])
async def test_what_is_read_of_a_job_is_decrypted_with_and_without_a_loop(blocking: bool) -> None:
    keys, job_id = old(), new_id_maker().next_id()
    sealed = keys.seal_text(f"card {SECRET}", job_id.bytes, limit=1_000)
    failed = jobs_pb2.JobInfo(
        id=job_id.bytes, state=jobs_pb2.STATE_DEAD, last_error=f"ValueError: {sealed}", created_us=1
    )
    done = jobs_pb2.JobInfo(
        id=job_id.bytes,
        state=jobs_pb2.STATE_COMPLETED,
        result=keys.seal_result(f'"{SECRET}"'.encode(), job_id.bytes),
        payload=keys.seal(SECRET.encode(), Purpose.PAYLOAD, job_id.bytes),
        created_us=1,
    )
    async with fake_server() as server, Headgate(server.address, encryption=keys) as hg:
        handle: Any = SyncHandle(hg._connection, job_id, Any) if blocking else hg.handle(job_id)
        client: Any = hg.sync if blocking else hg

        async def called(function: Callable[..., Any], *args: Any) -> Any:
            return await (asyncio.to_thread(function, *args) if blocking else function(*args))

        server.jobs[job_id.bytes] = done
        assert await called(handle.result) == SECRET
        assert (await called(handle.info)).result() == SECRET
        assert (await called(client.get, job_id)).payload == SECRET.encode()
        server.jobs[job_id.bytes] = failed
        with pytest.raises(JobDead, match=f"ValueError: card {SECRET}"):
            await called(handle.result)


async def test_a_repeated_submit_by_key_or_unique_is_the_same_job() -> None:
    hg = shop(old())
    charge = hg.tasks["charge"]
    with hg.testing() as box:
        for options in ({"key": "order-7"}, {"unique": "order-8"}):
            first, again = [await charge.with_options(**options).submit(SECRET) for _ in range(2)]
            assert (first.id, again.created) == (again.id, False)
        await box.drain()
        assert [job.state for job in box.of("charge")] == ["completed", "completed"]


async def _run_with(worker: Encryption | None) -> tuple[str, str]:
    """A job that was encrypted with the key `old`, run by a worker with these keys: its state and its error."""
    hg = shop(old())
    with hg.testing() as box:
        await hg.tasks["charge"].submit(SECRET)
        hg.tasks["charge"].encryption = worker
        await box.drain()
        (job,) = box.of("charge")
        return f"{job.state} {job.attempt}", job._stored.last_error


async def test_a_worker_without_the_key_fails_clearly_and_the_job_is_retried() -> None:
    state, error = await _run_with(Encryption({"new": NEW}, write="new"))
    assert state == "dead 2"  # both attempts were made
    assert error.startswith('MissingKey: the payload is encrypted with the key "old", which this program does not have')


async def test_a_worker_with_another_value_of_the_key_ends_the_job_at_once() -> None:
    state, error = await _run_with(Encryption({"old": NEW}, write="old"))
    assert state == "dead 1"
    assert error.startswith("DecryptionFailed: the payload cannot be decrypted")


async def test_a_worker_without_encryption_ends_the_job_with_a_payload_error() -> None:
    state, error = await _run_with(None)
    assert state == "dead 1"
    assert error.startswith("PayloadError")


# --- where people look


def test_people_see_that_a_body_is_encrypted_and_by_which_key() -> None:
    sealed = old().seal(b"x" * 10, Purpose.PAYLOAD, ONE)
    assert description(sealed) == f"(encrypted, key old, {len(sealed)} bytes)"
    assert Redaction().shown(sealed) == description(sealed)
    assert content_type_of(sealed) == "application/vnd.headgate.encrypted"
    assert content_type_of(b"{}") is None
    assert media_type_of(sealed, {"content-type": "text/plain"}) == "application/vnd.headgate.encrypted"
    assert len(sealed) == 10 + 47 + len("old")


def test_a_key_id_that_is_given_twice_is_refused_and_no_key_is_shown() -> None:
    with pytest.raises(InvalidInput, match=r"has the key id .a. twice") as caught:
        Encryption.from_text(f"a:{Encryption.new_key()},b:{Encryption.new_key()},a:{Encryption.new_key()}")
    assert "=" not in str(caught.value)
