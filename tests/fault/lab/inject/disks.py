"""A disk that is small, and can be filled and freed while someone uses it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from tests.fault.lab.inject import CannotInject, Injection, need, run

_BLOCK = b"\0" * (1 << 20)


class SmallDisk(Injection):
    """A file system of so many bytes, in memory."""

    def __init__(self, size: int) -> None:
        need("mount", "umount")
        if os.geteuid() != 0:
            raise CannotInject("mounting a small disk needs root")
        self.path = Path(tempfile.mkdtemp(prefix="headgate-lab-disk-"))
        self._ballast = self.path / ".ballast"
        try:
            run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "headgate-lab", str(self.path)])
        except BaseException:
            self.path.rmdir()
            raise
        self._mounted = True

    @property
    def free_bytes(self) -> int:
        """What is left for anybody."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, *, leave: int = 0) -> None:
        """Take all but `leave` bytes."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while (room := self.free_bytes - leave) > 0:
                    file.write(_BLOCK[: min(room, len(_BLOCK))])
            except OSError:
                return  # full: someone else was quicker with the last bytes

    def free(self) -> None:
        """Give back what `fill` took."""
        self._ballast.unlink(missing_ok=True)

    def heal(self) -> None:
        """Unmount; processes that use it must have ended, or gets a few seconds."""
        if not self._mounted:
            return
        self.free()
        until = time.monotonic() + 5
        while True:
            try:
                run(["umount", str(self.path)])
                break
            except CannotInject:
                if time.monotonic() > until:
                    run(["umount", "--lazy", str(self.path)])
                    break
                time.sleep(0.1)
        self._mounted = False
        self.path.rmdir()


def move_folder(old: Path, disk: SmallDisk) -> None:
    """Put a folder of a stopped cluster, such as `pg_wal` or `base`, on a disk of its own; a link stays."""
    new = disk.path / old.name
    shutil.copytree(old, new)
    owner = old.stat()
    for path in (new, *new.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    new.chmod(0o700)
    shutil.rmtree(old)
    old.symlink_to(new)


def move_wal(pgdata: Path, disk: SmallDisk) -> None:
    """Put the WAL of a stopped cluster on a disk of its own."""
    move_folder(pgdata / "pg_wal", disk)
