"""The data folder: what is in it, who owns which part, and where its socket is.

<data>/pgdata/        the PostgreSQL data folder; owned by the server's account, 0700; appears complete or not at all
<data>/password       for TCP logins, and the seed of the socket folder's name; 0600
<data>/postgres.log   what the server said; the previous one is kept as postgres.log.1
<data>/start.lock     held while a process decides: init, launch, join, stop
<data>/users.lock     shared by every user for as long as it uses the server
<data>/guardian.lock    held by the guardian, hence by exactly one server
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headgate.domain.errors import EmbeddedPostgresError
from headgate.embedded.locations import whole_path
from headgate.embedded.privileges import Account, server_account

_LOG_LIMIT = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Folder:
    """One data folder; every path in it."""

    home: Path

    @property
    def pgdata(self) -> Path:
        return self.home / "pgdata"

    @property
    def password(self) -> Path:
        return self.home / "password"

    @property
    def log(self) -> Path:
        return self.home / "postgres.log"

    @property
    def start_lock(self) -> Path:
        return self.home / "start.lock"

    @property
    def users_lock(self) -> Path:
        return self.home / "users.lock"

    @property
    def guardian_lock(self) -> Path:
        return self.home / "guardian.lock"

    @classmethod
    def prepare(cls, home: Path) -> Self:
        """Make the folder if need be, and refuse one that plainly is something else."""
        home = whole_path(home)
        try:
            _make(home)
            names = {name for name in os.listdir(home) if not name.startswith(".")}
        except OSError as problem:
            raise EmbeddedPostgresError(
                f"cannot use {home} for the embedded PostgreSQL: {problem}; choose another folder with HEADGATE_DATA"
            ) from problem
        if "PG_VERSION" in names:
            raise EmbeddedPostgresError(
                f"{home} is itself a PostgreSQL data folder, made by something else: choose another with HEADGATE_DATA"
            )
        if names and "start.lock" not in names:
            raise EmbeddedPostgresError(
                f"{home} holds other things ({', '.join(sorted(names)[:3])}): choose an empty folder with HEADGATE_DATA"
            )
        return cls(home)

    def data_major(self) -> int | None:
        """Return the major version the data was made by, or None before the first init."""
        try:
            return int((self.pgdata / "PG_VERSION").read_text().strip())
        except FileNotFoundError:
            if self.pgdata.exists():
                raise EmbeddedPostgresError(
                    f"{self.pgdata} has no PG_VERSION, so it is no complete data folder: move it away"
                ) from None
            return None
        except (ValueError, OSError) as problem:
            raise EmbeddedPostgresError(f"cannot read {self.pgdata / 'PG_VERSION'}: {problem}") from problem

    def account(self) -> Account | None:
        return server_account(self.pgdata)

    def socket_dir(self, account: Account | None) -> Path:
        """Make and return the private folder of the socket: short, since a socket's path must fit in 104 bytes.

        The name hangs on the password (a folder made anew must not meet the dying server of a removed one) and on the
        inode (a copied folder must not meet its original). It stays the same from start to start, so a DSN stays valid.
        """
        here = self.home.stat()
        owner = os.geteuid() if account is None else account.uid
        # Not TMPDIR first: on macOS and in build sandboxes it is long.
        for base in ("/tmp", tempfile.gettempdir()):  # noqa: S108 - made 0700 and checked below
            for salt in range(4):
                seed = f"{self.password.read_text()}:{here.st_dev}:{here.st_ino}:{salt}"
                path = Path(base, f"hg-{hashlib.sha256(seed.encode()).hexdigest()[:10]}")
                with contextlib.suppress(OSError):
                    if _claim(path, owner, account):
                        return path
        raise EmbeddedPostgresError("no folder for the server's socket: neither /tmp nor TMPDIR lets us make one")

    def rotate_log(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > _LOG_LIMIT:
                self.log.rename(self.log.with_suffix(".log.1"))

    def log_size(self) -> int:
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0

    def log_since(self, offset: int, *, lines: int = 12) -> str:
        """Return the last lines the server wrote after `offset`."""
        try:
            with self.log.open("rb") as log:
                log.seek(offset)
                return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""


def _make(home: Path) -> None:
    if home.parent.name == ".headgate" and not home.parent.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        (home.parent / ".gitignore").write_text("*\n")  # a project's history is no place for a database
    home.parent.mkdir(parents=True, exist_ok=True)
    # As root, the server's account has to pass through to pgdata, but needs to see nothing on the way.
    home.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)


def _claim(path: Path, owner: int, account: Account | None) -> bool:
    try:
        path.mkdir(mode=0o700)
        if account is not None:
            os.chown(path, account.uid, account.gid)
    except FileExistsError:
        # Left by a crash, or put there by somebody else: /tmp is everyone's, so believe the inode only.
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner or status.st_mode & 0o077:
            return False
    for stale in path.glob(".s.PGSQL.*"):
        # Safe only since the caller holds the guardian's lock: no server of this data folder is alive. A stale lock
        # file whose pid was reused would otherwise stop the next start.
        stale.unlink()
    return True
