"""JWTs: which tokens are accepted, and that no other one is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from joserfc.jwk import OctKey, OKPKey, RSAKey

from headgate.control import jwt_keys
from headgate.control.credentials import TOKEN_MAX_CHARS, Credentials
from headgate.control.jwt_keys import REFETCH_SECONDS, REFRESH_SECONDS, STALE_MAX_SECONDS, IssuerKeys, KeySetError
from headgate.control.jwt_tokens import JwtTokens
from headgate.control.keyring import KeyRing
from headgate.domain.identity import (
    CredentialsUnavailable,
    Identity,
    LookupRequired,
    Scope,
    TokenRevoked,
    Unauthenticated,
)
from headgate.domain.jwt_issuers import Issuer
from headgate.domain.topic_sets import TopicSet
from tests.support.jwts import (
    AUDIENCE,
    ISSUER,
    claims,
    key_set,
    new_key,
    part,
    signed,
    signed_with_public_key,
    unsigned,
)
from tests.unit.test_keyring import Rows

START = 1_800_000_000.0
ONE = new_key("one")
TWO = new_key("two")
PLAIN = Issuer(issuer=ISSUER, audience=AUDIENCE, algorithms=("ES256",), jwks_url="https://login.example.com/keys")


class Env:
    """An issuer, what it answers, and the tokens of a server that trusts it."""

    def __init__(self, issuer: Issuer = PLAIN, answer: bytes | None = None) -> None:
        self.clock, self.now = START, 1_000.0
        self.answer: bytes | Exception = answer if answer is not None else key_set(ONE)
        self.fetches = 0
        self.keys = IssuerKeys(issuer, self._read, now=lambda: self.now)
        self.tokens = JwtTokens([self.keys], clock=lambda: self.clock)

    async def _read(self) -> bytes:
        self.fetches += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def pass_time(self, seconds: float) -> None:
        self.clock += seconds
        self.now += seconds

    def claims(self, **more: Any) -> dict[str, Any]:
        return claims(self.clock, **more)

    def refused(self, token: str) -> str:
        """The reason, which is for the log only."""
        with pytest.raises(Unauthenticated) as error:
            self.tokens.identify(token)
        assert str(error.value) == "the token is not valid"
        return error.value.reason


async def stand_of(issuer: Issuer = PLAIN, answer: bytes | None = None) -> Env:
    made = Env(issuer, answer)
    await made.keys.refresh()
    return made


@pytest.fixture
async def env() -> Env:
    return await stand_of()


def changed(**fields: Any) -> Issuer:
    from dataclasses import replace

    return replace(PLAIN, **fields)


# ---------------------------------------------------------------------- good tokens


async def test_a_signed_token_becomes_an_identity_and_is_verified_once(env: Env) -> None:
    token = signed(ONE, env.claims(topics=["orders.*"]))
    who = env.tokens.identify(token)
    assert (who.tenant, who.subject) == ("acme", "ana")
    assert who.scopes == {Scope.SUBMIT, Scope.WORK, Scope.READ}, "scopes of others are ignored"
    assert who.topics == TopicSet.of("orders.*")
    assert who.expires_at == START + 305
    assert env.tokens.identify(token) is env.tokens.recheck(who) is who


async def test_two_tokens_of_one_holder_share_their_rate_limit(env: Env) -> None:
    first, second = (env.tokens.identify(signed(ONE, env.claims(jti=one))) for one in "ab")
    other = env.tokens.identify(signed(ONE, env.claims(sub="bob")))
    assert first.credential == second.credential != other.credential
    assert first.lasting_credential == "", "a bulk operation does not end with a token"


@pytest.mark.parametrize(
    ("alg", "made"),
    [
        ("RS256", lambda: RSAKey.generate_key(2048, parameters={"kid": "r"})),
        ("ES384", lambda: new_key("e", "P-384")),
        ("Ed25519", lambda: OKPKey.generate_key("Ed25519", parameters={"kid": "o"})),
        ("EdDSA", lambda: OKPKey.generate_key("Ed25519", parameters={"kid": "o"})),
    ],
    ids=["RS256", "ES384", "Ed25519", "EdDSA"],
)
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
async def test_each_kind_of_key_can_be_used(alg: str, made: Callable[[], Any]) -> None:
    key = made()
    env = await stand_of(changed(algorithms=(alg,)), key_set(key))
    assert env.tokens.identify(signed(key, env.claims(), alg=alg)).subject == "ana"


async def test_a_pem_file_has_one_key_and_needs_no_key_id() -> None:
    env = await stand_of(answer=ONE.as_pem(private=False))
    assert env.tokens.identify(signed(ONE, env.claims(), kid=None)).subject == "ana"


# ---------------------------------------------------------------------- algorithms and keys


async def test_algorithm_none_is_refused(env: Env) -> None:
    for alg in ("none", "None", "NONE", ""):
        assert "is not permitted" in env.refused(unsigned(env.claims(), alg=alg, kid="one"))


async def test_a_public_key_is_never_a_shared_secret(env: Env) -> None:
    assert "'HS256' is not permitted" in env.refused(signed_with_public_key(ONE, env.claims()))


async def test_only_the_algorithms_of_the_issuer_count_whatever_the_header_says() -> None:
    rsa = RSAKey.generate_key(2048, parameters={"kid": "one"})
    env = await stand_of(changed(algorithms=("RS256",)), key_set(rsa))
    assert env.tokens.identify(signed(rsa, env.claims(), alg="RS256"))
    assert "'PS256' is not permitted" in env.refused(signed(rsa, env.claims(), alg="PS256"))
    assert "'RS512' is not permitted" in env.refused(signed(rsa, env.claims(), alg="RS512"))


async def test_a_key_of_another_algorithm_or_use_is_no_key(env: Env) -> None:
    public = ONE.as_dict(private=False)
    secret = OctKey.generate_key(256, parameters={"kid": "oct"}).as_dict(private=True)
    for wrong in (
        public | {"alg": "ES512"},
        public | {"use": "enc"},
        public | {"key_ops": ["encrypt"]},
        secret,
        new_key("large", "P-384").as_dict(private=False),
        {"kty": "EC"},
        {},
    ):
        with pytest.raises(KeySetError, match="no key fits"):
            jwt_keys.parse_key_set(json.dumps({"keys": [wrong]}).encode(), PLAIN)


def test_a_short_rsa_key_is_refused() -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        short = RSAKey.generate_key(1024, parameters={"kid": "short"})
    with pytest.raises(KeySetError, match="no key fits"):
        jwt_keys.parse_key_set(key_set(short), changed(algorithms=("RS256",)))


async def test_a_signature_of_another_key_is_refused(env: Env) -> None:
    forged = signed(TWO, env.claims(), kid="one")
    assert env.refused(forged).startswith("signature")
    head, _, signature = signed(ONE, env.claims()).split(".")
    assert env.refused(f"{head}.{part(env.claims(sub='root'))}.{signature}").startswith("signature")
    assert env.refused(f"{head}.{part(env.claims())}.").startswith("signature")


async def test_keys_in_the_header_are_ignored_and_critical_fields_refused(env: Env) -> None:
    header = {"jku": "https://evil.example.com/", "x5u": "https://evil.example.com/", "jwk": TWO.as_dict(private=False)}
    assert env.refused(signed(TWO, env.claims(), **(header | {"kid": "one"}))).startswith("signature")
    assert env.tokens.identify(signed(ONE, env.claims(), **header)).subject == "ana"
    assert env.fetches == 1
    env.now += REFETCH_SECONDS
    good = signed(ONE, env.claims()).split(".")
    for name, value in (("crit", ["exp"]), ("b64", True)):
        head = part({"alg": "ES256", "kid": "one", name: value})
        assert "critical" in env.refused(".".join((head, *good[1:])))


async def test_a_malformed_key_id_is_refused_without_a_fetch(env: Env) -> None:
    env.now += REFETCH_SECONDS
    for kid in ("", "k" * 201, 7, ["one"], "one' OR 1=1--", "../../etc/passwd"):
        token = unsigned(env.claims(), alg="ES256", signature="AAAA", kid=kid)
        if isinstance(kid, str) and 1 <= len(kid) <= 200:
            with pytest.raises(LookupRequired):  # text like any other
                env.tokens.identify(token)
        else:
            assert env.refused(token) == "malformed key id"


# ---------------------------------------------------------------------- claims


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"aud": "billing"}, "wrong audience"),
        ({"aud": ["billing", "mail"]}, "wrong audience"),
        ({"aud": None}, "wrong audience"),
        ({"aud": {"headgate": 1}}, "wrong audience"),
        ({"iss": "https://login.example.com"}, "unknown issuer"),
        ({"iss": None}, "unknown issuer"),
        ({"iss": ["https://login.example.com/"]}, "unknown issuer"),
        ({"exp": None}, "exp is missing"),
        ({"exp": "tomorrow"}, "exp is missing"),
        ({"exp": True}, "exp is missing"),
        ({"exp": 1e300}, "exp is missing"),
        ({"iat": None}, "iat is missing"),
        ({"exp": int(START) - 5}, "expired"),
        ({"nbf": int(START) + 6}, "not valid yet"),
        ({"iat": int(START) + 6}, "not valid yet"),
        ({"nbf": "now"}, "nbf is missing"),
        ({"iat": int(START) - 12 * 3600 - 5}, "older than max_age"),
        ({"sub": None}, "claims: sub"),
        ({"sub": "a\nb"}, "claims: sub"),
        ({"sub": "x" * 101}, "claims: sub"),
        ({"tid": None}, "claims: tenant"),
        ({"tid": "ACME"}, "claims: tenant"),
        ({"tid": 7}, "claims: tenant"),
        ({"tid": "acme", "tenant_id": "umbrella"}, "the tenant claims disagree"),
        ({"tid": "acme", "organizationId": ""}, "the tenant claims disagree"),
        ({"topics": "mail"}, "claims: topics"),
        ({"topics": ["or*ders"]}, "claims: topics"),
    ],
)
async def test_a_token_with_a_wrong_claim_is_refused(env: Env, wrong: dict[str, Any], reason: str) -> None:
    assert reason in env.refused(signed(ONE, env.claims(**wrong)))


async def test_clocks_may_differ_by_the_skew_and_no_more(env: Env) -> None:
    for good in ({"exp": int(START) - 4}, {"nbf": int(START) + 5}, {"iat": int(START) + 5}):
        assert env.tokens.identify(signed(ONE, env.claims(**good))).subject == "ana"


async def test_tenant_claims_that_agree_and_a_tenant_of_the_issuer_are_accepted() -> None:
    env = await stand_of()
    assert env.tokens.identify(signed(ONE, env.claims(tenantId="acme", organization_id="acme"))).tenant == "acme"
    fixed = await stand_of(changed(tenant="acme"))
    assert fixed.tokens.identify(signed(ONE, env.claims(tid=None))).tenant == "acme"
    assert "disagree" in fixed.refused(signed(ONE, env.claims(tid="umbrella")))


async def test_names_of_claims_and_a_prefix_of_scopes_can_be_configured() -> None:
    from headgate.domain.jwt_issuers import Claims

    names = Claims(tenant=("org",), subject="client_id", scopes="permissions", topics="queues")
    env = await stand_of(changed(claims=names, scope_prefix="headgate:"))
    given = env.claims(
        tid="other",
        org="acme",
        client_id="svc",
        queues=["mail"],
        permissions=["headgate:work", "read", "headgate:system"],
    )
    who = env.tokens.identify(signed(ONE, given))
    assert (who.tenant, who.subject, who.topics, who.scopes) == ("acme", "svc", TopicSet.of("mail"), {Scope.WORK})


async def test_no_token_reaches_all_tenants(env: Env) -> None:
    assert env.tokens.identify(signed(ONE, env.claims(scope="system read"))).scopes == {Scope.READ}


async def test_a_claim_or_header_field_that_occurs_twice_is_refused(env: Env) -> None:
    twice = json.dumps(env.claims())[:-1] + ', "tid": "umbrella"}'
    assert "occurs twice" in env.refused(signed(ONE, twice))
    good = signed(ONE, env.claims()).split(".")
    head = part('{"alg": "ES256", "kid": "one", "alg": "none"}')
    assert "occurs twice" in env.refused(".".join((head, *good[1:])))


@pytest.mark.parametrize(
    "wrong", ["a.b.c", "ey.ey.ey", "..", "eyJ.", "ey" + "é.x.y", part("[]") + "." + part("7") + ".x"]
)
async def test_malformed_tokens_are_refused(env: Env, wrong: str) -> None:
    assert env.refused(wrong).startswith("malformed")


# ---------------------------------------------------------------------- time


@pytest.mark.req("W5")
async def test_an_open_stream_ends_when_its_token_expires_or_its_key_is_withdrawn(env: Env) -> None:
    who = env.tokens.identify(signed(ONE, env.claims()))
    env.pass_time(304)
    assert env.tokens.recheck(who) is who
    env.answer = key_set(TWO)
    await env.keys.refresh()
    with pytest.raises(TokenRevoked, match="not trusted"):
        env.tokens.recheck(who)
    env.answer = key_set(ONE, TWO)
    await env.keys.refresh()
    assert env.tokens.recheck(who) is who
    env.pass_time(1)
    with pytest.raises(TokenRevoked, match="has expired"):
        env.tokens.recheck(who)


async def test_a_known_token_is_refused_once_it_has_expired_or_its_key_is_withdrawn(env: Env) -> None:
    long, short = signed(ONE, env.claims(exp=int(START) + 9_000)), signed(ONE, env.claims())
    assert env.tokens.identify(long)
    assert env.tokens.identify(short)
    env.pass_time(305)
    assert "expired" in env.refused(short)
    env.answer = key_set(TWO)
    await env.keys.refresh()
    assert env.refused(long) == "unknown key id"


async def test_a_token_is_valid_no_longer_than_max_age() -> None:
    env = await stand_of(changed(max_age=timedelta(seconds=60)))
    who = env.tokens.identify(signed(ONE, env.claims(exp=int(START) + 9_000)))
    assert who.expires_at == START + 65


async def test_a_new_key_is_fetched_when_a_token_has_it_and_at_most_once_in_a_while(env: Env) -> None:
    token = signed(TWO, env.claims())
    assert env.refused(token) == "unknown key id", "just fetched"
    env.now += REFETCH_SECONDS
    env.answer = key_set(ONE, TWO)
    with pytest.raises(LookupRequired):
        env.tokens.identify(token)
    found = await asyncio.gather(*(env.tokens.lookup(token) for _ in range(20)))
    assert {one.subject for one in found} == {"ana"}
    assert env.fetches == 2, "one fetch for all that wait"
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            env.tokens.identify(signed(new_key("invented"), env.claims()))
    assert env.fetches == 2


async def test_without_a_key_id_a_token_needs_an_issuer_with_one_key(env: Env) -> None:
    token = signed(ONE, env.claims(), kid=None)
    assert env.tokens.identify(token).subject == "ana"
    both = await stand_of(answer=key_set(ONE, TWO))
    assert "no key id" in both.refused(token)


@pytest.mark.parametrize(
    "answer", [OSError("unreachable"), ValueError("status 500"), b"<html>", b'{"keys": []}', b'{"keys": {}}', b"[]"]
)
async def test_during_an_outage_the_keys_stay_in_use_for_a_day(env: Env, answer: bytes | Exception) -> None:
    env.answer = answer
    env.pass_time(REFRESH_SECONDS)
    await env.keys.refresh_if_due()
    assert env.fetches == 2
    assert env.tokens.identify(signed(ONE, env.claims())).subject == "ana"
    env.pass_time(STALE_MAX_SECONDS)
    with pytest.raises(CredentialsUnavailable, match="cannot be read"):
        env.tokens.identify(signed(ONE, env.claims()))
    env.answer = key_set(ONE)
    await env.keys.refresh_if_due()
    assert env.tokens.identify(signed(ONE, env.claims())).subject == "ana"


async def test_before_the_first_answer_tokens_are_refused_as_unavailable_and_it_is_asked_again_soon() -> None:
    env = Env()
    env.answer = OSError("unreachable")
    with pytest.raises(CredentialsUnavailable):
        env.tokens.identify(signed(ONE, env.claims()))
    await env.keys.refresh_if_due()
    env.answer = key_set(ONE)
    env.now += REFETCH_SECONDS - 1
    await env.keys.refresh_if_due()
    assert env.fetches == 1
    env.now += 1
    await env.keys.refresh_if_due()
    assert env.tokens.identify(signed(ONE, env.claims())).subject == "ana"


# ---------------------------------------------------------------------- several validators


class _Unasked:
    def identify(self, token: str) -> Identity:
        raise AssertionError(token)


async def test_the_form_of_a_token_selects_one_validator(env: Env) -> None:
    def chosen(token: str) -> object:
        return Credentials(KeyRing(Rows()), file=_Unasked(), jwts=env.tokens)._of_form(token)  # type: ignore[arg-type]

    assert isinstance(chosen("hg_abcd1234_" + "x" * 40), KeyRing)
    assert isinstance(chosen("hg_ey.J.x"), KeyRing)
    assert chosen(signed(ONE, env.claims())) is env.tokens
    for other in ("", "a-token-of-the-file", "ey-is-only-its-beginning", "eyJ.two", "a.b.c"):
        assert isinstance(chosen(other), _Unasked)
    none = Credentials(KeyRing(Rows()))
    for unknown in ("", "a-token-of-the-file", signed(ONE, env.claims())):
        with pytest.raises(Unauthenticated):
            none.identify(unknown)


async def test_a_huge_token_is_refused_unread(env: Env) -> None:
    both = Credentials(KeyRing(Rows()), jwts=env.tokens)
    huge = signed(ONE, env.claims(padding="x" * TOKEN_MAX_CHARS))
    with pytest.raises(Unauthenticated) as refused:
        both.identify(huge)
    assert refused.value.reason == f"a token of {len(huge)} characters"
    with pytest.raises(Unauthenticated):
        both.identify("hg_" + "x" * 1_000_000)


async def test_a_credential_of_a_validator_that_is_gone_is_revoked(env: Env) -> None:
    who = env.tokens.identify(signed(ONE, env.claims()))
    with pytest.raises(TokenRevoked):
        Credentials(KeyRing(Rows())).recheck(who)
    assert Credentials(KeyRing(Rows()), jwts=env.tokens).recheck(who) is who
