"""What a file of tokens means: topics, scopes, and what is not understood."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headgate.control.auth import WORKER_SCOPES, TokenFile, parse_tokens
from headgate.domain.errors import InvalidSetting
from headgate.domain.identity import Identity, PermissionDenied, Scope, Unauthenticated

TOKEN = "a-token-of-sixteen"


def identity(**entry: object) -> Identity:
    return parse_tokens(json.dumps({TOKEN: {"tenant": "acme", **entry}}), source="f")[TOKEN]


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


def test_an_empty_list_of_scopes_permits_nothing_and_admin_everything() -> None:
    for scope in Scope:
        with pytest.raises(PermissionDenied):
            identity(scopes=[]).require(scope)
        identity(scopes=["admin"]).require(scope)
        identity(scopes=scope.value).require(scope)


@pytest.mark.parametrize("topics", [["*"], ["mail", "mail.*"], "*", [""], [None], [7]])
def test_there_are_no_patterns_of_topics(topics: object) -> None:
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
    assert tokens.identify(TOKEN).topics == {"mail", "print"}
    path.write_text(json.dumps({TOKEN: {"tenant": "acme", "topics": ["mail"]}}))
    assert tokens.refresh()
    assert tokens.identify(TOKEN).topics == {"mail"}
    path.write_text("{}")
    assert tokens.refresh()
    with pytest.raises(Unauthenticated):
        tokens.identify(TOKEN)
