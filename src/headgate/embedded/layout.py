"""The data folder: its files, their owners, and the location of its socket.

<data>/pgdata/        the PostgreSQL data folder; owned by the server's account, 0700; created atomically
<data>/password       for TCP logins; also the seed of the name of the socket folder; 0600
<data>/postgres.log   log of the server; the previous log is kept as postgres.log.1
<data>/start.lock     held during a decision: init, launch, join, stop
<data>/users.lock     held shared by every user of the server
<data>/guardian.lock  held by the guardian of the one running server
<data>/dev.lock       held by the one `headgate dev` on this folder; says which process that is
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
    """The paths of one data folder."""

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

    @property
    def dev_lock(self) -> Path:
        return self.home / "dev.lock"

    @classmethod
    def prepare(cls, home: Path) -> Self:
        """Create the folder if it does not exist, and refuse a folder with other content."""
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
                f"{home} is a PostgreSQL data folder not created by Headgate; choose another folder with HEADGATE_DATA"
            )
        if names and "start.lock" not in names:
            raise EmbeddedPostgresError(
                f"{home} contains other files ({', '.join(sorted(names)[:3])}); "
                "choose an empty folder with HEADGATE_DATA"
            )
        return cls(home)

    def data_major(self) -> int | None:
        """Return the major version that created the data, or None before the first init."""
        try:
            return int((self.pgdata / "PG_VERSION").read_text().strip())
        except FileNotFoundError:
            if self.pgdata.exists():
                raise EmbeddedPostgresError(
                    f"{self.pgdata} has no PG_VERSION, so it is not a complete data folder; move it away"
                ) from None
            return None
        except (ValueError, OSError) as problem:
            raise EmbeddedPostgresError(f"cannot read {self.pgdata / 'PG_VERSION'}: {problem}") from problem

    def account(self) -> Account | None:
        return server_account(self.pgdata)

    def socket_dir(self, account: Account | None) -> Path:
        """Create and return the private folder of the socket: a short path, since a socket path is at most 104 bytes.

        The name depends on the password (a recreated folder must not find the old server of a removed one) and on the
        inode (a copied folder must not find the server of the original). It stays the same, so a DSN stays valid.
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
        raise EmbeddedPostgresError(
            "cannot create a folder for the server socket in /tmp or TMPDIR; check their permissions"
        )

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
        (home.parent / ".gitignore").write_text("*\n")  # keep the database out of version control
    home.parent.mkdir(parents=True, exist_ok=True)
    # As root, the server's account must traverse the folder to pgdata, but need not list it.
    home.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)


def _claim(path: Path, owner: int, account: Account | None) -> bool:
    try:
        path.mkdir(mode=0o700)
        if account is not None:
            os.chown(path, account.uid, account.gid)
    except FileExistsError:
        # Left by a crash, or created by another user: /tmp is writable for all, so check owner and mode.
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner or status.st_mode & 0o077:
            return False
    for stale in path.glob(".s.PGSQL.*"):
        # Safe since the caller holds the guardian's lock: no server of this data folder is alive. A stale lock file
        # with a reused pid would otherwise block the next start.
        stale.unlink()
    return True
