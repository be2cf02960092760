"""What operators do, from Python: `hg.admin`. One module per noun; each is a thin skin over the server's verbs."""

from __future__ import annotations

from headgate.sdk.admin.dead import Dead
from headgate.sdk.admin.listing import MatchingJobs
from headgate.sdk.admin.operations import Operations
from headgate.sdk.connection import Connection


class Admin:
    """The operator's side of a Headgate client; the token needs the scope `operate` (for looking, `read`)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def jobs_matching(self, filter: str = "", *, oldest_first: bool = False) -> MatchingJobs:  # noqa: A002
        """What a filter matches, newest first: all of it, by pages, or counted."""
        return MatchingJobs(self._connection, filter, oldest_first=oldest_first)

    @property
    def operations(self) -> Operations:
        """One verb over everything a filter matches."""
        return Operations(self._connection)

    @property
    def dead(self) -> Dead:
        """Dead letters by their kind."""
        return Dead(self._connection, self.operations)


__all__ = ["Admin"]
