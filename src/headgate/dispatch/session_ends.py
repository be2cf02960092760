"""Why worker sessions end; each reason has a code of its own."""

from __future__ import annotations

from headgate.domain.errors import HeadgateError


class SessionEnded(HeadgateError):
    """The server ended a session, for the reason given."""

    code = "session_ended"


class Superseded(SessionEnded):
    """A newer session with the same worker id took this one's place."""

    code = "superseded"


class SessionSilent(SessionEnded):
    """The worker sent nothing for longer than its lease."""

    code = "session_silent"


class SessionOverflow(SessionEnded):
    """The worker does not read what it is sent."""

    code = "session_overflow"


class SessionForgotten(SessionEnded):
    """The instance has lost track of this session, though its stream is open: the worker must connect again."""

    code = "session_forgotten"


class ConnectionLost(SessionEnded):
    """The worker's end of the stream is closed."""

    code = "connection_lost"


class ClosedByWorker(ConnectionLost):
    """The worker asked for no more jobs, and then closed its stream: it has stopped, or moved to another instance."""

    code = "closed_by_worker"


class UnknownJobs(SessionEnded):
    """The worker reports jobs that it was not given. It may connect again, and declare what it holds."""

    code = "unknown_jobs"
