"""The body of a job that is submitted by its topic."""

from __future__ import annotations

from headgate.domain.validation import check_payload
from headgate.sdk.codec import check_plain, encode


def body_of(payload: object) -> bytes:
    """Bytes as they are, all else as JSON; raises PayloadError, with the path, for what JSON would not bring back."""
    if isinstance(payload, bytes):
        return check_payload(payload)
    check_plain(payload, path="payload")
    return check_payload(encode(payload, path="payload"))
