"""The body of a job that is submitted by its topic."""

from __future__ import annotations

from headgate.domain.validation import check_payload
from headgate.sdk.codec import encode


def body_of(payload: object) -> bytes:
    """Bytes as they are, all else as JSON."""
    return check_payload(payload if isinstance(payload, bytes) else encode(payload, path="payload"))
