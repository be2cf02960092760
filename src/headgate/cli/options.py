"""Options that many commands share."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

Output = Annotated[Literal["text", "json"], Parameter(help="text or json.")]
Url = Annotated[str, Parameter(help="The server; HEADGATE_URL or 127.0.0.1:7070 when left out.")]
