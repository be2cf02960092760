"""The policy of a topic: what a change does, schemas of payloads, and files of policies."""

from __future__ import annotations

import json
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.policy_files import InvalidPolicy, as_toml, read_policies
from headgate.control.payload_check import PayloadCheck, compiled
from headgate.control.topic_policies import operator_values
from headgate.domain.backoff import RetryPolicy
from headgate.domain.envelope import header_of
from headgate.domain.errors import InvalidInput, PayloadMismatch, TooLarge, VersionConflict
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.payload_schemas import SCHEMA_MAX_BYTES, checked_schema
from headgate.domain.timestamps import EPOCH
from headgate.domain.topic_limits import Rate
from headgate.domain.topic_policy import changes_from_plain, changes_of, check_version, plain_changes
from headgate.domain.topic_rules import NAMES, Origin, RuleSources, checked_declaration, default_of
from headgate.domain.topic_values import document_value, setting_of
from headgate.sdk.admin.topics import TopicSettings

SCHEMA = {
    "type": "object",
    "required": ["to"],
    "properties": {"to": {"type": "string"}, "copies": {"type": "array", "items": {"type": "integer"}}},
}
ANA = Identity(tenant="acme", subject="ana", scopes=frozenset(Scope))


def applied(sources: RuleSources, **values: object) -> RuleSources:
    return sources.applied(values, by="ana", at=EPOCH, reason="")


# ---------------------------------------------------------------------- changes


def test_a_change_says_value_and_origin_before_and_after() -> None:
    declared, _ = RuleSources().declare("shop", {"max_attempts": 5}, worker="w", by="token", at=EPOCH)
    (change,) = changes_of(declared, applied(declared, max_attempts=3))
    assert (change.setting, change.before, change.after) == ("max_attempts", 5, 3)
    assert (change.before_origin, change.after_origin) == (Origin.DECLARED, Origin.OPERATOR)


def test_the_same_value_by_an_operator_is_a_change_of_its_origin_only_once() -> None:
    declared, _ = RuleSources().declare("shop", {"max_attempts": 5}, worker="w", by="token", at=EPOCH)
    settled = applied(declared, max_attempts=5)
    assert [(one.before, one.after) for one in changes_of(declared, settled)] == [(5, 5)]
    again = settled.applied({"max_attempts": 5}, by="ben", at=EPOCH + timedelta(days=1), reason="again")
    assert again == settled  # who has set it, and when, stays
    assert changes_of(settled, again) == []


def test_changes_survive_being_stored() -> None:
    rate = Rate(count=10, period=timedelta(seconds=1), burst=3)
    values: dict[str, Any] = {
        "retry": RetryPolicy.fixed(timedelta(seconds=3)),
        "rate": rate,
        "lease": timedelta(seconds=45),
        "payload_schema": checked_schema(SCHEMA),
        "dead_letter_topic": "mail-dead",
        "max_consumers": 2,
    }
    changes = changes_of(RuleSources(), applied(RuleSources(), **values))
    assert {one.setting for one in changes} == set(values)
    assert changes_from_plain(plain_changes(changes)) == changes


@pytest.mark.parametrize(("expected", "current"), [(None, 7), (7, 7), (0, 0)])
def test_a_version_that_was_seen_passes(expected: int | None, current: int) -> None:
    check_version("mail", expected=expected, current=current)


def test_another_version_is_a_conflict_that_names_both() -> None:
    with pytest.raises(VersionConflict, match='topic "mail" is at version 4, not 3'):
        check_version("mail", expected=3, current=4)


@pytest.mark.parametrize("name", ["lease", "payload_schema", "dead_letter_topic", "max_consumers"])
def test_what_concerns_more_than_one_program_cannot_be_declared_by_a_handler(name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be declared"):
        checked_declaration({name: None})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"dead_letter_topic": "mail"}, "dead_letter_topic: is the topic itself"),
        ({"dead_letter_topic": "no topic"}, "dead_letter_topic"),
        ({"max_consumers": 0}, "max_consumers"),
        ({"lease": timedelta(0)}, "lease"),
        ({"payload_schema": '{"type": "strin"}'}, "payload_schema: is not a usable JSON Schema at /type"),
        ({"payload_schema": '{"$ref": "http://localhost/x"}'}, r"\$ref must stay within the document"),
        ({"payload_schema": "[]"}, "must be a JSON object"),
        ({"payload_schema": "{"}, "is not JSON"),
    ],
)
def test_values_that_cannot_be_are_refused_with_their_field(values: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        operator_values(ANA, "mail", values, clear=())


def test_a_token_needs_the_dead_letter_topic_as_well() -> None:
    some = Identity(tenant="acme", subject="ana", scopes=frozenset(Scope), topics=frozenset({"mail"}))
    with pytest.raises(PermissionDenied):
        operator_values(some, "mail", {"dead_letter_topic": "secret"}, clear=())


# ---------------------------------------------------------------------- schemas


def check_of(schema: object) -> PayloadCheck:
    schemas = {"mail": checked_schema(schema)}
    return PayloadCheck(lambda tenant: schemas if tenant == "acme" else {})


@pytest.mark.parametrize(
    ("payload", "path", "says"),
    [
        (b'{"to": 3}', "/to", '3 is not of type "string"'),
        (b"{}", "", '"to" is a required property'),
        (b'{"to": "a", "copies": [1, "x"]}', "/copies/1", "is not of type"),
        (b"", "", "is empty"),
        (b"\xff", "", "is not JSON"),
        (b'{"to": ', "", "is not JSON"),
        (b"NaN", "", "is not JSON"),
    ],
)
def test_a_mismatch_names_the_path_of_the_value(payload: bytes, path: str, says: str) -> None:
    with pytest.raises(PayloadMismatch, match=says) as caught:
        check_of(SCHEMA).refuse("acme", "mail", payload)
    assert (caught.value.path, caught.value.code, caught.value.topic) == (path, "payload_mismatch", "mail")
    assert caught.value.field == f"payload{path}"


async def test_encrypted_payloads_are_not_checked() -> None:
    check, body = check_of(SCHEMA), header_of("key", bound=True) + bytes(40)
    check.refuse("acme", "mail", body)
    assert list(await check.mismatches("acme", [("mail", body), ("mail", b"\0hg")])) == [1]


async def test_a_schema_is_compiled_once_and_only_of_its_topic() -> None:
    check = check_of(SCHEMA)
    jobs = [("mail", b'{"to": "a"}')] * 50 + [("other", b"\x00")]
    assert await check.mismatches("acme", jobs) == {}
    assert await check.mismatches("other", [("mail", b"")]) == {}
    assert check.compilations == 1


def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    with pytest.raises(PayloadMismatch):
        check_of({"type": "object"}).refuse("acme", "mail", b"[" * 100_000 + b"]" * 100_000)


def test_patterns_take_linear_time() -> None:
    check = check_of({"type": "string", "pattern": "^(a+)+$"})
    with pytest.raises(PayloadMismatch):
        check.refuse("acme", "mail", json.dumps("a" * 50_000 + "b").encode())
    with pytest.raises(InvalidInput, match="look-around"):
        compiled('{"pattern": "(?=a)"}')


def test_a_schema_has_a_bound() -> None:
    with pytest.raises(TooLarge):
        checked_schema({"description": "x" * SCHEMA_MAX_BYTES})


# ---------------------------------------------------------------------- files

SETTINGS: dict[str, Any] = {
    "max_attempts": 5,
    "retry": RetryPolicy.exponential(timedelta(milliseconds=1500), cap=timedelta(minutes=10)),
    "priority": -3,
    "time_limit": timedelta(seconds=90),
    "ageing_step": timedelta(microseconds=1_500),
    "keep_completed": timedelta(days=2),
    "keep_dead": timedelta(days=90),
    "keep_cancelled": timedelta(hours=36),
    "lease": timedelta(seconds=45),
    "payload_schema": checked_schema(SCHEMA | {"default": None, "title": "It's '''quoted''' \u007f"}),
    "dead_letter_topic": "mail/dead",
    "max_consumers": 2,
    "max_payload_bytes": 65_536,
    "max_running": 0,
    "rate": Rate(count=100, period=timedelta(seconds=1), burst=20),
    "max_running_per_key": 1,
    "key_rate": Rate(count=1, period=timedelta(milliseconds=250)),
    "ordered_by_key": True,
    "fair_by_key": False,
    "max_backlog": 10**12,
}


def test_every_setting_is_in_the_document_and_known_to_the_sdk() -> None:
    assert set(SETTINGS) == set(NAMES) == set(TopicSettings.__annotations__)


@pytest.mark.parametrize("name", ["policies.toml", "policies.json"])
def test_a_file_that_was_written_is_read_as_the_same_settings(tmp_path: Path, name: str) -> None:
    documents: dict[str, dict[str, object]] = {
        "mail": {one: document_value(one, value) for one, value in SETTINGS.items()},
        "a/b.c": {"version": 3, "retry": "explicit:1s:2.5s"},
    }
    text = "\n".join(as_toml(documents)) if name.endswith("toml") else json.dumps({"topics": documents})
    (tmp_path / name).write_text(text)
    mail, other = read_policies(str(tmp_path / name)).documents
    assert mail.settings == SETTINGS
    assert (other.topic, other.version) == ("a/b.c", 3)
    assert other.settings == {"retry": RetryPolicy.explicit(timedelta(seconds=1), timedelta(seconds=2.5))}


def test_none_takes_a_value_away_also_as_null_of_json() -> None:
    for name in NAMES:
        for none in ("none", None):
            expected = {"time_limit": timedelta(0), "priority": 0}.get(name)
            assert setting_of(name, none, field=name) == expected
    assert default_of("time_limit") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[topics.mail]\nmax_attempt = 5",
            "line 2, topics.mail.max_attempt: is no setting of a topic; did you mean max_attempts?",
        ),
        ("[topics.a]\nlease = '1s'\n[topics.mail]\n\nlease = 'x'", "line 5, topics.mail.lease: is not a duration"),
        ("[topics.mail]\npayload_schema = '{'", "line 2, topics.mail.payload_schema: is not JSON"),
        ("[topics.mail]\nversion = -1", "line 2, topics.mail.version: must be a whole number"),
        ("[topics.'no topic']", "line 1, topics.no topic: "),
        ("topics = 3", "has no topics"),
        ("[topic.mail]", "has the unknown key 'topic'"),
        ("[topics.mail", "is not TOML"),
        ('{"topics": {\n"mail": {\n"rate": "fast"}}}', "line 3, topics.mail.rate: is not a rate"),
        ('{"topics": {\n"mail": 3}}', "line 2, topics.mail: must be a table"),
        ('{"topics": ', "line 1: is not JSON"),
    ],
)
def test_an_error_names_file_line_topic_and_field(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "policies"
    path.write_text(text)
    with pytest.raises(InvalidPolicy) as caught:
        read_policies(str(path))
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_a_schema_can_be_a_table_of_toml(tmp_path: Path) -> None:
    text = '[topics.mail.payload_schema]\ntype = "object"\n[topics.mail.payload_schema.properties.to]\ntype = "string"'
    (tmp_path / "p.toml").write_text(text)
    (mail,) = read_policies(str(tmp_path / "p.toml")).documents
    assert json.loads(str(mail.settings["payload_schema"])) == tomllib.loads(text)["topics"]["mail"]["payload_schema"]
