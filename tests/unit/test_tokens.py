"""What a file of tokens means: topics, scopes, digests, when they expire, and what is not understood."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from headgate.control.auth import WORKER_SCOPES, StaticTokens, TokenFile, parse_tokens, same_rights
from headgate.domain.errors import InvalidSetting
from headgate.domain.identity import Identity, PermissionDenied, Scope, TokenRevoked, Unauthenticated
from headgate.domain.rate_limits import Rates
from headgate.domain.topic_sets import TopicSet

TOKEN = "a-token-of-sixteen"


def identity(**entry: object) -> Identity:
    return parsed({TOKEN: {"tenant": "acme", **entry}}).identify(TOKEN)


def parsed(entries: object, now: list[float] | None = None) -> StaticTokens:
    clock = now or [0.0]
    return StaticTokens(parse_tokens(json.dumps(entries), source="f"), clock=lambda: clock[0])


def hashed(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def test_without_topics_all_are_permitted_and_without_scopes_those_of_a_worker() -> None:
    who = identity()
    assert who.allowed(["mail", "print"]) == ["mail", "print"]
    assert who.scopes == WORKER_SCOPES
    with pytest.raises(PermissionDenied, match='"operate"'):
        who.require(Scope.OPERATE)


def test_a_list_of_topics_permits_those_and_an_empty_one_none() -> None:
    who = identity(topics=["mail", "print"])
    assert who.allowed(["print", "other", "mail"]) == ["print", "mail"]
    assert who.allowed([]) == []
    assert identity(topics="mail").allowed(["print", "mail"]) == ["mail"]
    for wrong in (who, identity(topics=[])):
        with pytest.raises(PermissionDenied, match="none of the topics other, another"):
            wrong.allowed(["other", "another"])


def test_a_token_can_have_rate_limits() -> None:
    assert identity(rates={"submit": "5/1s:9"}).rates == Rates.parse({"submit": "5/1s:9"}, field="rates")
    for wrong in ({"submits": "5/1s"}, {"submit": "5"}, "5/1s"):
        with pytest.raises(InvalidSetting, match="token 1: rates"):
            identity(rates=wrong)


def test_a_token_that_looks_like_an_api_key_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="begins with hg_"):
        parsed({"hg_abcdefgh_" + "x" * 40: {"tenant": "acme"}})


def test_an_empty_list_of_scopes_permits_nothing_and_admin_everything() -> None:
    for scope in set(Scope) - {Scope.SYSTEM}:
        with pytest.raises(PermissionDenied):
            identity(scopes=[]).require(scope)
        identity(scopes=["admin"], name="ana").require(scope)
        identity(scopes=scope.value, name="ana").require(scope)


def test_system_is_the_scope_of_tokens_without_a_tenant_and_admin_does_not_include_it() -> None:
    who = parsed({TOKEN: {"scopes": ["system"], "name": "root"}}).identify(TOKEN)
    assert (who.tenant, who.topics) == ("", None)
    who.require(Scope.SYSTEM)
    for scope in set(Scope) - {Scope.SYSTEM}:
        with pytest.raises(PermissionDenied):
            who.require(scope)
    with pytest.raises(PermissionDenied, match='"system"'):
        identity(scopes=["admin"], name="ana").require(Scope.SYSTEM)


@pytest.mark.parametrize(
    "entry",
    [
        {"tenant": "acme", "scopes": ["system"]},
        {"scopes": ["system", "read"]},
        {"scopes": ["system"], "topics": ["mail"]},
        {"scopes": ["admin"]},
        {},
    ],
)
def test_only_system_is_without_a_tenant_and_it_goes_with_nothing_else(entry: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting, match=r'token 1(: the scope "system" cannot be combined| must have tenant)'):
        parsed({TOKEN: entry})


def test_topics_can_be_patterns_and_a_star_alone_is_all_topics() -> None:
    who = identity(topics=["mail", "orders.*"])
    assert who.allowed(["mail", "orders.eu", "orders", "mails"]) == ["mail", "orders.eu"]
    assert identity(topics=["mail", "*"]).topics is None


@pytest.mark.parametrize("topics", [["or*ders"], ["mail", "*.mail"], "**", [""], [None], [7], [".*"]])
def test_other_patterns_are_refused(topics: object) -> None:
    with pytest.raises(InvalidSetting, match="token 1: topic"):
        identity(topics=topics)


def test_a_token_has_sixteen_characters_and_is_not_shown() -> None:
    assert parse_tokens(json.dumps({"x" * 16: {"tenant": "acme"}}), source="f")
    with pytest.raises(InvalidSetting, match="token 2 has 15 characters; it needs 16") as refused:
        parse_tokens(json.dumps({TOKEN: {"tenant": "acme"}, "y" * 15: {"tenant": "acme"}}), source="f")
    assert "y" * 15 not in str(refused.value)


def test_a_changed_file_is_read_again_and_one_that_is_not_understood_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({TOKEN: {"tenant": "acme", "topics": ["mail", "print"]}}))
    tokens = TokenFile(path)
    assert not tokens.refresh()
    path.write_text("{")
    for _ in range(2):  # not once only: it is not taken for the file that was read
        with pytest.raises(InvalidSetting, match="is not JSON"):
            tokens.refresh()
    assert tokens.identify(TOKEN).topics == TopicSet.of("mail", "print")
    path.write_text(json.dumps({TOKEN: {"tenant": "acme", "topics": ["mail"]}}))
    assert tokens.refresh()
    assert tokens.identify(TOKEN).topics == TopicSet.of("mail")
    path.write_text("{}")
    assert tokens.refresh()
    with pytest.raises(Unauthenticated):
        tokens.identify(TOKEN)


def test_a_token_may_be_given_by_its_digest_and_the_digest_itself_opens_nothing() -> None:
    tokens = parsed({hashed(TOKEN): {"tenant": "acme", "name": "ci"}})
    who = tokens.identify(TOKEN)
    assert (who.tenant, who.subject) == ("acme", "ci")
    for wrong in (hashed(TOKEN), hashed(TOKEN)[7:], "", TOKEN + "x"):
        with pytest.raises(Unauthenticated):
            tokens.identify(wrong)
    # Nothing that is kept of it, or shown, tells the token or its digest.
    assert TOKEN not in repr(who)
    assert hashlib.sha256(TOKEN.encode()).hexdigest()[:8] not in repr(who)


@pytest.mark.parametrize("wrong", ["sha256:", "sha256:" + "0" * 63, "sha256:" + "g" * 64, "sha256:" + "0" * 65])
def test_a_digest_has_64_digits(wrong: str) -> None:
    with pytest.raises(InvalidSetting, match="token 1: sha256: must be followed by 64 hexadecimal digits"):
        parsed({wrong: {"tenant": "acme"}})


def test_a_token_that_is_there_twice_is_refused() -> None:
    entry = '{"tenant": "acme"}'
    for second in (TOKEN, hashed(TOKEN), hashed(TOKEN).upper().replace("SHA", "sha")):
        with pytest.raises(InvalidSetting, match="token 2 is listed twice"):
            parse_tokens(f'{{"{TOKEN}": {entry}, "{second}": {entry}}}', source="f")


def test_a_token_expires_at_its_time_also_after_it_was_used() -> None:
    now = [1_000_000_000.0]  # 2001-09-09T01:46:40Z
    tokens = parsed({TOKEN: {"tenant": "acme", "name": "ci", "expires": "2001-09-09T03:46:41+02:00"}}, now)
    who = tokens.identify(TOKEN)
    assert tokens.recheck(who) is who
    assert tokens.expired == 0
    now[0] += 1
    with pytest.raises(Unauthenticated) as refused:
        tokens.identify(TOKEN)
    assert refused.value.reason == "token of ci has expired"
    assert "expired" not in str(refused.value), "a stranger is not told that the token was one"
    with pytest.raises(TokenRevoked, match="the token of ci has expired"):
        tokens.recheck(who)
    assert tokens.expired == 1


@pytest.mark.parametrize("wrong", ["2027-01-31", "2027-01-31T00:00:00", "soon", "", 1_800_000_000, ["2027"]])
def test_when_a_token_expires_has_a_zone(wrong: object) -> None:
    with pytest.raises(InvalidSetting, match="token 1: expires: must be a date and time with a zone"):
        identity(expires=wrong)


@pytest.mark.parametrize("entry", [{}, {"tenant": "acme", "subject": "x"}, {"tenant": "acme", "colour": 1}, [], "acme"])
def test_an_entry_has_a_tenant_and_only_known_fields(entry: Any) -> None:
    with pytest.raises(InvalidSetting, match="token 1 must have tenant"):
        parsed({TOKEN: entry})


@pytest.mark.parametrize("scope", ["operate", "admin", "system"])
def test_a_token_that_the_audit_log_can_show_has_a_name(scope: str) -> None:
    entry: dict[str, Any] = {"scopes": [scope]} | ({} if scope == "system" else {"tenant": "acme"})
    with pytest.raises(InvalidSetting, match=f'token 1 needs a name: the audit log shows who used the scope "{scope}"'):
        parsed({TOKEN: entry})
    assert parsed({TOKEN: entry | {"name": "ana"}}).identify(TOKEN).subject == "ana"


def test_a_token_without_a_name_keeps_what_it_is_called_when_others_go() -> None:
    other = "another-token-of-sixteen"
    both = parsed({other: {"tenant": "acme"}, TOKEN: {"tenant": "acme"}})
    alone = parsed({TOKEN: {"tenant": "acme"}})
    assert both.identify(TOKEN).subject == alone.identify(TOKEN).subject
    assert same_rights(both.identify(TOKEN), alone.recheck(both.identify(TOKEN)))
    with pytest.raises(TokenRevoked):
        alone.recheck(both.identify(other))


def test_a_removed_file_revokes_everything_at_the_second_look_and_counts_when_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({TOKEN: {"tenant": "acme"}}))
    tokens = TokenFile(path)
    who, before = tokens.identify(TOKEN), tokens.state()
    path.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        tokens.refresh()
    assert tokens.identify(TOKEN) is who, "one look may be the middle of a replacement"
    assert not tokens.gone
    assert tokens.refresh()
    assert tokens.gone
    assert tokens.state() != before
    with pytest.raises(Unauthenticated):
        tokens.identify(TOKEN)
    with pytest.raises(TokenRevoked):
        tokens.recheck(who)
    assert not tokens.refresh()
    (tmp_path / "away").rename(path)  # the very same file
    assert tokens.refresh()
    assert not tokens.gone
    assert tokens.identify(TOKEN) == who


def test_a_file_of_the_same_size_and_date_is_read_again(tmp_path: Path) -> None:
    path, other = tmp_path / "tokens.json", tmp_path / "other.json"
    path.write_text(json.dumps({TOKEN: {"tenant": "acme"}}))
    other.write_text(json.dumps({TOKEN: {"tenant": "acne"}}))
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    tokens = TokenFile(path)
    other.replace(path)
    assert tokens.refresh()
    assert tokens.identify(TOKEN).tenant == "acne"


def test_the_set_of_accepted_tokens_is_no_larger_than_the_file(tmp_path: Path) -> None:
    tokens = parsed({TOKEN: {"tenant": "acme"}})
    tokens.identify(TOKEN)
    for number in range(100):
        with pytest.raises(Unauthenticated):
            tokens.identify(f"a-guess-of-sixteen-{number}")
    assert len(tokens._accepted) == 1
