"""What operators do, from Python: `hg.admin`. One module per noun; each is a thin skin over the server's verbs."""

from __future__ import annotations

from headgate.sdk.admin.topics import TopicsAdmin
from headgate.sdk.connection import Connection


class Admin:
    """The operator's side of a Headgate client; the token needs the scope `operate` (for looking, `read`)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def topics(self) -> TopicsAdmin:
        """Rules and limits of topics."""
        return TopicsAdmin(self._connection)


__all__ = ["Admin"]
