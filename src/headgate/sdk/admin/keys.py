"""API keys: `hg.admin.keys`."""

from __future__ import annotations

from builtins import list as list_of
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from headgate.domain.api_keys import OVERLAP_DEFAULT, check_key_id, check_life
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import keys_pb2 as pb

CREATE: Final = Method("KeyService/CreateKey", pb.CreateKeyRequest, pb.KeyResponse, repeatable=False)
GET: Final = Method("KeyService/GetKey", pb.GetKeyRequest, pb.KeyInfo)
LIST: Final = Method("KeyService/ListKeys", pb.ListKeysRequest, pb.ListKeysResponse)
ROTATE: Final = Method("KeyService/RotateKey", pb.RotateKeyRequest, pb.KeyResponse, repeatable=False)
REVOKE: Final = Method("KeyService/RevokeKey", pb.RevokeKeyRequest, pb.KeyInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """An API key without its secret. `state` is active, expired or revoked; `topics` None means all topics.

    `old_until` is the time until which the secret before the last rotation works.
    """

    id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...] | None
    rates: Mapping[str, str]
    state: str
    created: datetime
    created_by: str
    expires: datetime | None
    rotated: datetime | None
    old_until: datetime | None
    revoked: datetime | None
    revoked_by: str
    last_used: datetime | None


class KeysAdmin:
    """The API keys of your tenant; with a token of the scope `system`, of every tenant."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self,
        name: str,
        *,
        scopes: Sequence[str],
        topics: Sequence[str] | None = None,
        expires_in: Seconds | None = None,
        rates: Mapping[str, str] | None = None,
        tenant: str = "",
    ) -> tuple[KeyInfo, str]:
        """Create a key; returns it and the key itself, which cannot be shown again.

        `topics` may have patterns such as `orders.*`. `expires_in` is at least a second; without it the key does not
        expire. `rates` are limits by class: `{"submit": "100/1s:200"}`.
        `tenant` is for tokens of the scope `system`.
        """
        answer = await self._connection.call(
            CREATE,
            pb.CreateKeyRequest(
                name=utf8_text(name, field="name"),
                scopes=[utf8_text(one, field="scopes") for one in scopes],
                limited_to_topics=topics is not None,
                topics=[utf8_text(one, field="topics") for one in topics or ()],
                tenant=utf8_text(tenant, field="tenant"),
                expires_in_ms=0 if expires_in is None else _life_in_ms(expires_in),
                rates=rates or {},
            ),
        )
        return _info(answer.info), answer.key

    async def get(self, key_id: str) -> KeyInfo:
        """One key by its id (`hg_7k3mz9ab`). Raises NotFound."""
        request = pb.GetKeyRequest(id=check_key_id(key_id))
        return _info(await self._connection.call(GET, request, about=("key", key_id)))

    async def list(self, *, revoked: bool = False) -> list_of[KeyInfo]:
        """All keys by id; revoked ones as well, if asked for."""
        found: list_of[KeyInfo] = []
        request = pb.ListKeysRequest(revoked=revoked, limit=1_000)
        while True:
            answer = await self._connection.call(LIST, request)
            found += map(_info, answer.keys)
            if not answer.after:
                return found
            request.after = answer.after

    async def rotate(self, key_id: str, *, overlap: Seconds = OVERLAP_DEFAULT, reason: str = "") -> tuple[KeyInfo, str]:
        """Give a key a new secret, returned once. The old one works for `overlap`, a day by default; 0 ends it now."""
        request = pb.RotateKeyRequest(
            id=check_key_id(key_id),
            overlap_ms=delay_in_ms(overlap, field="overlap"),
            reason=utf8_text(reason, field="reason"),
        )
        answer = await self._connection.call(ROTATE, request, about=("key", key_id))
        return _info(answer.info), answer.key

    async def revoke(self, key_id: str, *, reason: str = "") -> KeyInfo:
        """End a key; what is open with it ends within five seconds, on every server."""
        request = pb.RevokeKeyRequest(id=check_key_id(key_id), reason=utf8_text(reason, field="reason"))
        return _info(await self._connection.call(REVOKE, request, about=("key", key_id)))


def _life_in_ms(expires_in: Seconds) -> int:
    """Milliseconds for the wire, where 0 is a key without an end: a life that is over must not become that."""
    life = delay_in_ms(expires_in, field="expires_in")
    check_life(timedelta(milliseconds=life))
    return life


def _info(one: pb.KeyInfo) -> KeyInfo:
    return record(KeyInfo, one, topics=tuple(one.topics) if one.limited_to_topics else None)
