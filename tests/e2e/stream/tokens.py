"""Who may do what on the server of these tests, and the codes of its receipts."""

from __future__ import annotations

ALPHA, NARROW, REVOKED, SUBMIT_ONLY = (f"a-token-for-{name}-only" for name in ("alpha", "narrow", "revoked", "submits"))
TOKENS: dict[str, dict[str, object]] = {
    REVOKED: {"tenant": "alpha"},  # the first, so that revoking it moves the others up
    ALPHA: {"tenant": "alpha"},
    NARROW: {"tenant": "alpha", "topics": ["mail", "print"]},
    SUBMIT_ONLY: {"tenant": "alpha", "scopes": ["submit", "read"]},
}
APPLIED, DUPLICATE, STALE, UNKNOWN, INVALID = range(5)
