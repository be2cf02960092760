"""One line on stderr and one exit code per error; scripts rely on the codes. No stack trace of ours is shown.

0   success
1   an error without its own code; an error of the user's code, with its traceback
2   usage: unknown command or option, invalid value
3   not found
4   refused: the current state does not allow it, or another change came first
5   unreachable or busy: the same command may succeed later
70  a bug in headgate
78  configuration: a setting, the durability of the database, a schema of another release, a missing right in it
130 ended by Ctrl-C
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import sys
import sysconfig
import traceback
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from headgate.domain.errors import (
    DataFolderInUse,
    EmbeddedPostgresError,
    HeadgateError,
    InvalidInput,
    InvalidSetting,
    MigrationFailed,
    MissingRights,
    NotFound,
    OutcomeUnknown,
    ReadOnly,
    Refused,
    SchemaMismatch,
    StorageFull,
    StoreBusy,
    StoreUnavailable,
    UnsafeDatabase,
    UnsuitableDatabase,
)

if TYPE_CHECKING:
    from cyclopts import CycloptsError, MissingArgumentError

FAILURE, USAGE, BUG = 1, 2, 70

# The first match wins, so a subclass precedes its base.
_EXIT_CODES: tuple[tuple[type[HeadgateError], int], ...] = (
    (InvalidSetting, 78),
    (InvalidInput, USAGE),
    (NotFound, 3),
    (Refused, 4),
    (MigrationFailed, 4),
    (ReadOnly, 4),
    (StoreUnavailable, 5),
    (StoreBusy, 5),
    (OutcomeUnknown, 5),
    (StorageFull, 5),
    (DataFolderInUse, 4),
    (EmbeddedPostgresError, 5),
    (SchemaMismatch, 78),
    (MissingRights, 78),
    (UnsafeDatabase, 78),
    (UnsuitableDatabase, 78),
)
# By code: importing the SDK's errors, and gRPC with them, costs every command most of a second.
_BY_CODE = {
    **dict.fromkeys(("not_connected", "not_acknowledged", "outbox_full", "overloaded", "result_timeout"), 5),
    **dict.fromkeys(("unauthenticated", "forbidden", "version_mismatch", "submit_conflict", "superseded"), 4),
}
# By the code of the server, where the SDK has one error class for many codes.
_REFUSALS = (
    *("conflict", "bulk_conflict", "refused", "wrong_state", "dependency_cycle", "batch_sealed"),
    *("unique_taken", "backlog_full", "quota_exceeded", "version_conflict"),
)
_BY_REPORT = {
    "not_found": 3,
    **dict.fromkeys((*_REFUSALS, "permission_denied", "protocol_error"), 4),
    **dict.fromkeys(("overloaded", "store_unavailable", "store_busy", "row_locked", "outcome_unknown", "read_only"), 5),
    **dict.fromkeys(("storage_full", "shutting_down", "rate_limited", "credentials_unavailable"), 5),
    **dict.fromkeys(("invalid_input", "invalid_filter", "too_large", "payload_mismatch"), USAGE),
}
# What only the server imports, and only the terminal view; tests/unit/test_dependencies.py compares.
_SERVER_PACKAGES = frozenset(
    {
        *("asyncpg", "cryptography", "grpc_health", "grpc_reflection", "h11", "jinja2", "joserfc", "jsonschema_rs"),
        *("litestar", "markupsafe", "prometheus_client", "uvicorn"),
    }
)
_TOP_PACKAGES = frozenset({"rich", "textual"})
# Words of other job systems, below each command, and what to type here.
_RETRY = {"retry": "redrive", "rerun": "redrive", "replay": "redrive", "delete": "discard", "purge": "discard"}
_GET, _SHOW = {"show": "get"}, {"get": "show"}  # most nouns have one of the two
_OTHER_WORDS = {
    "": {
        **dict.fromkeys(("enqueue", "push", "add"), "submit"),
        **dict.fromkeys(("queue", "queues"), "topic"),
        **dict.fromkeys(("op", "ops", "operation", "operations"), "bulk"),
        **dict.fromkeys(("dlq", "failures", "failed"), "dead"),
        **dict.fromkeys(("retry", "rerun", "replay"), "job redrive"),
        **dict.fromkeys(("cron", "periodic"), "schedule"),
        **dict.fromkeys(("tail", "logs", "log"), "events"),
        "login": "profile login",
        "context": "profile",
        "cancel": "job cancel",
        "server": "serve",
        "start": "serve",
        "ui": "top",
    },
    "job": {**_RETRY, **_GET, "edit-retry": "redrive --payload", "log": "logs"},
    "dead": {**_RETRY, "get": "list", "show": "list"},
    "topic": {**_GET, **{word: f"headgate {word}" for word in ("pause", "resume")}, "limit": "set", "import": "apply"},
    "workers": {**_GET, "pause": "quiet", "kill": "stop"},
    "schedule": {
        **_GET,
        **dict.fromkeys(("create", "add"), "put"),
        "trigger": "run",
        "remove": "delete",
        "import": "sync",
        "disable": "pause",
        "enable": "resume",
    },
    "webhook": {**_GET, "put": "create", "add": "create", "rotate": "rotate-secret", "ping": "test"},
    "batch": {**_GET, "create": "open", "close": "seal"},
    "bulk": {**_GET, "stop": "cancel"},
    "key": {**dict.fromkeys(("get", "show"), "list"), "delete": "revoke", "add": "create"},
    "session": {"delete": "revoke", "end": "revoke", "get": "list", "show": "list"},
    "config": _SHOW,
    "retention": _SHOW,
    "tenant": _SHOW,
    "profile": {"add": "login", "create": "login", "delete": "remove", "logout": "remove", **_SHOW},
}
_EXAMPLES = {"app": "app:hg", "topic": "mail", "shell": "bash"}
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
_UNCONVERTED = re.compile(r'unable to convert (".*") into (int|float|bool)\b[^.]*')
_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""Of writing to what is open: a disk that is full, a terminal that has gone."""
_CREDENTIALS = re.compile(r"://[^\s/@]*@")
_OURS = (
    str(Path(__file__).parents[1]) + os.sep,
    "<frozen importlib",
    str(Path(sysconfig.get_path("stdlib"), "importlib")),
)
_OTHERS = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class UserCodeFailed(Exception):
    """Code of the user raised an error; the text is its traceback, without frames of ours."""


def exit_code(error: HeadgateError) -> int:
    """Return the exit code for an error."""
    found = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILURE)
    return _BY_REPORT.get(getattr(error, "reported", ""), _BY_CODE.get(error.code, found))


def print_error(text: str) -> None:
    """Print one error to stderr, without passwords of URLs."""
    print("error:", _CREDENTIALS.sub("://…@", text), file=sys.stderr, flush=True)


def print_warning(text: str) -> None:
    """Print one warning to stderr."""
    print("warning:", text, file=sys.stderr, flush=True)


def usage_text(error: CycloptsError) -> str:
    """Return one line for an error of the command-line parser."""
    from difflib import get_close_matches

    from cyclopts import MissingArgumentError, UnknownCommandError, UnusedCliTokensError

    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        words = _OTHER_WORDS.get(" ".join(error.command_chain or ()), {})
        word = error.unused_tokens[0]
        # Also misspelt, unless the parser knows a command that is near.
        near = [word] if word in words or "Did you mean" in str(error) else get_close_matches(word, words, n=1)
        if known := [words[one] for one in near if one in words]:
            return f'unknown command "{word}"; did you mean "{known[0]}"?'
    if isinstance(error, UnusedCliTokensError):
        given = " ".join(error.unused_tokens or [])
        return f'unexpected "{given}" after "{" ".join(error.command_chain or [])}"'
    if isinstance(error, MissingArgumentError) and (text := _missing_text(error)):
        return text
    text = _UNCONVERTED.sub(lambda found: f"{found[1]} is not {_KINDS[found[2]]}", " ".join(str(error).split()))
    # `Unknown command "x". Did you mean "y"?` -> `unknown command "x"; did you mean "y"?`
    first, *rest = re.split(r"(?<=[\"\w])\. (?=[A-Z])", text)
    line = "; ".join(part[:1].lower() + part[1:] for part in (first, *rest))
    suggestion = re.search(r"did you mean .*?\?", line)  # then the list of all commands only hides it
    return line[: suggestion.end()] if suggestion else line.replace(", ...", ", …").rstrip(".")


def _missing_text(error: MissingArgumentError) -> str:
    """Return which argument is missing, with an example of the command; "" for an option without its value."""
    argument = error.argument
    if argument is not None and argument.index is None and error.keyword is None and argument.name.startswith("--"):
        command = " ".join(("headgate", *(error.command_chain or ())))
        return f"{argument.name} is required; see {command} --help"
    if argument is None or argument.index is None or argument.tokens or error.keyword or error.target is None:
        return ""
    parameters = inspect.signature(error.target).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    required = [one.name for one in parameters if one.kind in kinds and one.default is inspect.Parameter.empty]
    words = ["headgate", *(error.command_chain or ()), *(_EXAMPLES.get(name, name.upper()) for name in required)]
    return f"give the {argument.name.lstrip('-').replace('-', ' ')}: {' '.join(words)}"


def missing_extra_text(error: BaseException | None) -> str:
    """What to install, if a command needs a package that only an extra of the installation brings; else ""."""
    while error is not None:
        package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if package in _SERVER_PACKAGES:
            return f'this command needs the server, and {package} is not installed; pip install "headgate[server]"'
        if package in _TOP_PACKAGES:
            return f'this command needs a terminal view, and {package} is not installed; pip install "headgate[top]"'
        error = error.__cause__
    return ""


def output_error_text(error: Exception) -> str:
    """What keeps the output from being written, if that is the error; else ""."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
        return f"cannot write the output: {os.strerror(error.errno)}"
    return ""


def traceback_text(error: BaseException) -> str:
    """The traceback of an error of the user's module, without the frames that import it."""
    return _format(error, _from_first(error.__traceback__, but=_OURS))


def refusal_text(error: HeadgateError) -> str:
    """The traceback of a check of ours that refuses the user's module: down to the user's line, without our frames."""
    shown = traceback.TracebackException(type(error), error, _from_first(error.__traceback__, but=_OURS))
    users = takewhile(lambda frame: not frame.filename.startswith(_OURS[0]), shown.stack)
    shown.stack[:] = [frame for frame in users if not frame.filename.startswith(_OURS)]
    return "".join(shown.format(chain=False)).rstrip("\n")


def users_traceback_text(error: BaseException) -> str:
    """The traceback from the first frame of the user's code on; "" if only our code and libraries are in it."""
    first = _from_first(error.__traceback__, but=(*_OURS, *_OTHERS, "<"))
    return "" if first is None else _format(error, first)


def _from_first(trace: TracebackType | None, *, but: tuple[str, ...]) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(but):
        trace = trace.tb_next
    return trace


def _format(error: BaseException, trace: TracebackType | None) -> str:
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip("\n")


def bug_text(error: Exception) -> str:
    """Return one line for an unexpected exception; the full trace if HEADGATE_TRACEBACK is set."""
    if os.environ.get("HEADGATE_TRACEBACK"):
        return "".join(traceback.format_exception(error))
    return f"unexpected {type(error).__name__}: {error}; this is a bug (HEADGATE_TRACEBACK=1 shows where)"
