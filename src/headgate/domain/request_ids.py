"""Ids of requests: in log lines, audit entries and errors of one call, on both sides.

A client may send its own as `x-request-id` (gRPC metadata, or an HTTP header); otherwise the server makes one. It tells
nothing about who sent it: it is a label, checked for its form only.
"""

from __future__ import annotations

import re
from typing import Final

HEADER: Final = "x-request-id"
_FORM: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def is_request_id(text: object) -> bool:
    """Whether an id of a client can be used; one that cannot is replaced, since the request itself is fine."""
    return isinstance(text, str) and _FORM.fullmatch(text) is not None
