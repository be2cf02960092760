"""KeyService: API keys and sessions of browsers. Translates and delegates to control/keys.py and web_sessions.py."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from headgate.api.grpc.auth import caller
from headgate.api.grpc.codec import answers
from headgate.api.grpc.methods import Context
from headgate.control.keys import Keys
from headgate.control.web_sessions import WebSessions
from headgate.domain import limits
from headgate.domain.api_keys import KeyView
from headgate.domain.validation import check_integer
from headgate.domain.web_sessions import WebSession
from headgate.wire import keys_pb2 as pb


class KeyService:
    """One method per call."""

    protocol: ClassVar = pb.DESCRIPTOR.services_by_name["KeyService"]

    def __init__(self, keys: Keys, sessions: WebSessions) -> None:
        self._keys, self._sessions = keys, sessions

    async def create_key(self, request: pb.CreateKeyRequest, _call: Context) -> pb.KeyResponse:
        """Create a key."""
        check_integer(request.expires_in_ms, field="expires_in_ms", low=0, high=limits.DELAY_MAX_MS)
        limited = request.limited_to_topics or bool(request.topics)
        view, key = await self._keys.create(
            caller(),
            request.name,
            scopes=list(request.scopes),
            topics=list(request.topics) if limited else None,
            tenant=request.tenant,
            expires_in=timedelta(milliseconds=request.expires_in_ms) if request.expires_in_ms else None,
            rates=dict(request.rates),
        )
        return pb.KeyResponse(info=_info(view), key=key)

    async def get_key(self, request: pb.GetKeyRequest, _call: Context) -> pb.KeyInfo:
        """One key."""
        return _info(await self._keys.get(caller(), request.id))

    async def list_keys(self, request: pb.ListKeysRequest, _call: Context) -> pb.ListKeysResponse:
        """A page of keys."""
        found, after = await self._keys.page(
            caller(), revoked=request.revoked, after=request.after, limit=request.limit or limits.NAMES_PAGE
        )
        return pb.ListKeysResponse(keys=map(_info, found), after=after)

    async def rotate_key(self, request: pb.RotateKeyRequest, _call: Context) -> pb.KeyResponse:
        """A new secret."""
        check_integer(request.overlap_ms, field="overlap_ms", low=0, high=limits.DELAY_MAX_MS)
        overlap = timedelta(milliseconds=request.overlap_ms)
        view, key = await self._keys.rotate(caller(), request.id, overlap=overlap, reason=request.reason)
        return pb.KeyResponse(info=_info(view), key=key)

    async def revoke_key(self, request: pb.RevokeKeyRequest, _call: Context) -> pb.KeyInfo:
        """End a key."""
        return _info(await self._keys.revoke(caller(), request.id, reason=request.reason))

    async def list_sessions(self, request: pb.ListSessionsRequest, _call: Context) -> pb.ListSessionsResponse:
        """A page of sessions."""
        found, after = await self._sessions.page(
            caller(), after=request.after, limit=request.limit or limits.NAMES_PAGE
        )
        return pb.ListSessionsResponse(sessions=map(_session, found), after=after)

    async def revoke_session(self, request: pb.RevokeSessionRequest, _call: Context) -> pb.SessionInfo:
        """End a session."""
        return _session(await self._sessions.revoke(caller(), request.id, reason=request.reason))


def _info(view: KeyView) -> pb.KeyInfo:
    return answers.of(pb.KeyInfo, view, limited_to_topics=view.topics is not None)


def _session(one: WebSession) -> pb.SessionInfo:
    return answers.of(pb.SessionInfo, one)
