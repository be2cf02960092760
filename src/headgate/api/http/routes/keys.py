"""API keys: create, show, rotate, revoke. A key itself is in the answers to create and rotate, and nowhere else."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from litestar.params import JSONBody, PathParameter, QueryParameter

from headgate.api.http.codec import Input, Milliseconds, Output, Reason, answers, span
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes.job_verbs import WithReason
from headgate.api.http.routing import PageSize, get, post
from headgate.domain import limits
from headgate.domain.api_keys import LIFE_MAX, LIFE_MIN, OVERLAP_DEFAULT, KeyView
from headgate.domain.identity import Scope
from headgate.domain.rate_limits import RateClass
from headgate.domain.validation import to_ms

TAG = ["keys"]
_TOPICS: Final = rf"^(\*|{limits.TOPIC_PATTERN}\*?)$"
_RATE: Final = "^[1-9][0-9]{0,3}/([1-9]|[1-5][0-9])[smh](:[1-9][0-9]{0,3})?$"
"""Common ones; others are valid too (domain/rate_limits.py), and examples of documents are made from this."""
KeyId = Annotated[str, PathParameter(max_length=100, description="Id of the key, such as hg_7k3mz9ab.")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.KEY_NAME_MAX_CHARS)]
Names = Annotated[list[str], msgspec.Meta(max_length=limits.PATTERNS_MAX)]


class NewKeyIn(Input, kw_only=True):
    """A key to create."""

    name: Annotated[Name, msgspec.Meta(description="The person or program that has the key.")]
    scopes: Annotated[
        Names,
        msgspec.Meta(
            description="submit, work, read, operate, admin; or system alone.",
            extra_json_schema={"minItems": 1, "items": {"enum": list(Scope)}},
        ),
    ]
    topics: Annotated[
        Annotated[Names, msgspec.Meta(extra_json_schema={"items": {"type": "string", "pattern": _TOPICS}})] | None,
        msgspec.Meta(description="Names, and patterns such as `orders.*`. Default: all topics."),
    ] = None
    tenant: Annotated[str, msgspec.Meta(description="Only for callers with the scope system.")] = ""
    expires_in_ms: Annotated[
        Annotated[int, msgspec.Meta(ge=to_ms(LIFE_MIN), le=to_ms(LIFE_MAX))] | None,
        msgspec.Meta(description="At least a second. Default: it does not expire."),
    ] = None
    rates: Annotated[
        dict[str, str],
        msgspec.Meta(
            description="Rate limits by class: `100/1s:20`.",
            extra_json_schema={
                "propertyNames": {"enum": list(RateClass)},
                "additionalProperties": {"type": "string", "pattern": _RATE},
            },
        ),
    ] = {}


class RotateIn(Input, kw_only=True):
    """How to rotate."""

    overlap_ms: Annotated[
        Milliseconds | None, msgspec.Meta(description="How long the old secret works. Default: a day; 0: not at all.")
    ] = None
    reason: Reason = ""


class KeyInfo(Output, kw_only=True):
    """A key without its secret."""

    id: str
    tenant: str = ""
    name: str
    scopes: list[str]
    limited_to_topics: bool = False
    topics: list[str] = []
    rates: dict[str, str] = {}
    state: Annotated[str, msgspec.Meta(description="active, expired or revoked")]
    created_us: int
    created_by: str
    expires_us: int = 0
    rotated_us: int = 0
    old_until_us: int = 0
    revoked_us: int = 0
    revoked_by: str = ""
    last_used_us: int = 0


class KeyResponse(Output, kw_only=True):
    """A key and, once, the key itself."""

    info: KeyInfo
    key: Annotated[str, msgspec.Meta(description="It is not stored, and cannot be shown again.")]


class KeyPage(Output, kw_only=True):
    """A page of keys by id."""

    keys: list[KeyInfo]
    after: Annotated[str, msgspec.Meta(description="For the next page; left out on the last one.")] = ""


@post("/v1/keys", uses="KeyService/CreateKey", status=201, tags=TAG)
async def create_key(request: ApiRequest, data: JSONBody[NewKeyIn]) -> KeyResponse:
    """Create a key. The answer is the only one that has it."""
    view, key = await request.cases.keys.create(
        request.caller,
        data.name,
        scopes=data.scopes,
        topics=data.topics,
        tenant=data.tenant,
        expires_in=span(data.expires_in_ms),
        rates=data.rates,
    )
    return KeyResponse(info=_info(view), key=key)


@get("/v1/keys", uses="KeyService/ListKeys", tags=TAG)
async def list_keys(
    request: ApiRequest,
    revoked: Annotated[bool, QueryParameter(description="Revoked keys as well.")] = False,
    after: Annotated[str, QueryParameter(max_length=100, description="The id after which the page begins.")] = "",
    limit: PageSize = limits.NAMES_PAGE,
) -> KeyPage:
    """List keys by id."""
    found, following = await request.cases.keys.page(request.caller, revoked=revoked, after=after, limit=limit)
    return KeyPage(keys=[_info(one) for one in found], after=following)


@get("/v1/keys/{key_id:str}", uses="KeyService/GetKey", tags=TAG)
async def get_key(request: ApiRequest, key_id: KeyId) -> KeyInfo:
    """Show one key."""
    return _info(await request.cases.keys.get(request.caller, key_id))


@post("/v1/keys/{key_id:str}/rotate", uses="KeyService/RotateKey", tags=TAG)
async def rotate_key(request: ApiRequest, key_id: KeyId, data: JSONBody[RotateIn | None] = None) -> KeyResponse:
    """Give a key a new secret; the old one works until the overlap is over."""
    given = data or RotateIn()
    overlap = span(given.overlap_ms)
    view, key = await request.cases.keys.rotate(
        request.caller, key_id, overlap=OVERLAP_DEFAULT if overlap is None else overlap, reason=given.reason
    )
    return KeyResponse(info=_info(view), key=key)


@post("/v1/keys/{key_id:str}/revoke", uses="KeyService/RevokeKey", tags=TAG)
async def revoke_key(request: ApiRequest, key_id: KeyId, data: JSONBody[WithReason | None] = None) -> KeyInfo:
    """End a key, and within five seconds what it has open on every instance."""
    reason = "" if data is None else data.reason
    return _info(await request.cases.keys.revoke(request.caller, key_id, reason=reason))


def _info(view: KeyView) -> KeyInfo:
    return answers.of(KeyInfo, view, limited_to_topics=view.topics is not None)
