"""Create a data folder atomically."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from headgate.domain.errors import EmbeddedPostgresError
from headgate.embedded.binaries import Binaries
from headgate.embedded.guardian import data_argument
from headgate.embedded.layout import Folder
from headgate.embedded.privileges import Account

SUPERUSER = "headgate"


def initialise(
    folder: Folder, binaries: Binaries, account: Account | None, *, by_handle: bool, time_limit: float
) -> None:
    """Run initdb in a draft folder and rename it: a killed init leaves a draft, which the next init removes.

    The caller holds the start lock, so a draft of a live process is never removed.
    """
    for leftover in folder.home.glob("pgdata.draft-*"):
        _discard(leftover)
    draft = Path(tempfile.mkdtemp(prefix="pgdata.draft-", dir=folder.home))
    try:
        password = secrets.token_urlsafe(24)
        if account is not None:
            os.chown(draft, account.uid, account.gid)
        _run(draft, binaries, account, password, by_handle=by_handle, time_limit=time_limit)
        folder.password.unlink(missing_ok=True)
        _write_private(folder.password, password)
        draft.rename(folder.pgdata)
        _sync(folder.home)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _run(
    draft: Path, binaries: Binaries, account: Account | None, password: str, *, by_handle: bool, time_limit: float
) -> None:
    problem = ""
    for locale in _locales(binaries.major):
        for left in draft.iterdir():  # leftovers of a rejected locale
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        where, handles = data_argument(str(draft), by_handle=by_handle)
        handles.append(pwfile := _nameless_file(password, account))
        try:
            done = subprocess.run(
                [
                    *(str(binaries.initdb), "-D", where, "-U", SUPERUSER, "-E", "UTF8", *locale),
                    # The socket folder is 0700, which protects local logins; TCP requires the password.
                    *("--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile=/dev/fd/{pwfile}"),
                    *("--data-checksums", "--no-instructions"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd="/",
                env=server_environment(),
                timeout=time_limit,
                check=False,
                pass_fds=handles,
                start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
        except subprocess.TimeoutExpired as late:
            raise EmbeddedPostgresError(f"initdb did not finish within {time_limit:.0f} s in {draft.parent}") from late
        except (OSError, subprocess.SubprocessError) as refused:
            if account is not None and isinstance(refused, PermissionError):
                raise EmbeddedPostgresError(
                    f"this root cannot switch to {account.name}, and PostgreSQL refuses to run as root (a container "
                    "without CAP_SETUID and CAP_SETGID?): run as an unprivileged user, or set HEADGATE_DATABASE_URL"
                ) from refused
            raise EmbeddedPostgresError(f"cannot run {binaries.initdb}: {refused}") from refused
        finally:
            for handle in handles:
                os.close(handle)
        if done.returncode == 0:
            return
        problem = done.stdout.strip()
        if "locale" not in problem:
            break
    if "could not look up effective user ID" in problem:
        problem += (
            f". initdb needs an entry for uid {os.geteuid()} in the password database: add one to /etc/passwd, "
            "run as another user, or set HEADGATE_DATABASE_URL"
        )
    raise EmbeddedPostgresError(f"initdb failed in {draft.parent} ({binaries.source}): {problem[-2000:]}")


def _locales(major: int) -> Sequence[Sequence[str]]:
    """Return locales to try: C.UTF-8 sorts the same everywhere and needs no REINDEX after a libc upgrade."""
    if major >= 17:  # built in, so always available
        return [("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")]
    return [("--locale=C.UTF-8",), ("--locale=C",)]


def server_environment() -> dict[str, str]:
    """Return a small, known environment: PGPORT or PGDATA of the caller must not reach the server.

    The library path of a custom build is kept.
    """
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZDIR") if name in os.environ}
    return {"PATH": os.environ.get("PATH") or os.defpath, "LC_ALL": "C", "TZ": "UTC", **kept}


def _discard(draft: Path) -> None:
    """Remove the draft of a killed init, repeatedly, since its initdb may still be running and writing.

    Without its files, that initdb soon fails. A draft that remains does no harm.
    """
    until = time.monotonic() + 5
    while draft.exists() and time.monotonic() < until:
        shutil.rmtree(draft, ignore_errors=True)
        time.sleep(0.02)


def _nameless_file(text: str, account: Account | None) -> int:
    """Return an open file without a name: readable whatever the folder permissions, and gone after a kill."""
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        if account is not None:
            os.fchown(file.fileno(), account.uid, account.gid)
        return fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder; initdb ignores that too
            os.fsync(handle)
    finally:
        os.close(handle)
