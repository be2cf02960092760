"""`hg.admin.full_id`: an id from its first digits."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from headgate.domain.errors import InvalidInput, NotFound
from headgate.domain.ids import ID_BYTES, PREFIX_MIN_DIGITS, IdKind, JobId, id_from_bytes, is_id_prefix, parse_job_id
from headgate.domain.validation import shown
from headgate.sdk.connection import Connection
from headgate.sdk.errors import AmbiguousId
from headgate.sdk.rpc import Method
from headgate.wire import admin_pb2 as pb

FIND: Final = Method("AdminService/FindIds", pb.FindIdsRequest, pb.FindIdsResponse)
_KINDS: Final = {IdKind.JOB: pb.ID_KIND_JOB, IdKind.BATCH: pb.ID_KIND_BATCH, IdKind.BULK: pb.ID_KIND_BULK}


async def full_id(connection: Connection, kind: str, text: UUID | str) -> JobId:
    """The id that begins with `text`. A whole id is returned as it is, without a call."""
    if isinstance(text, UUID) or (is_id_prefix(text) and len(text.replace("-", "")) == 2 * ID_BYTES):
        return parse_job_id(text)
    named = IdKind.parse(kind)
    if not is_id_prefix(text):
        raise InvalidInput(
            "id", f"must be a UUID, or its first {PREFIX_MIN_DIGITS} or more hexadecimal digits, got {shown(text)}"
        )
    answer = await connection.call(FIND, pb.FindIdsRequest(kind=_KINDS[named], prefix=text))
    ids = [id_from_bytes(one) for one in answer.ids]
    if len(ids) == 1 and not answer.more:
        return ids[0]
    if not ids and not answer.more:
        raise NotFound(str(named), text)
    raise AmbiguousId(str(named), text, ids, more=answer.more)
