"""Another release of Headgate beside this one: a copy of the tree with migrations of its own, run by PYTHONPATH.

later = LaterRelease(tmp_path)
ServerProcess(dsn, folder=tmp_path, environ=later.environ)     # what is in this tree is then the earlier release
"""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

from headgate.store.migration_files import Migration, load

VERSION = "99.0.0"
KNOWN = len(load())
"""The newest migration of this tree."""

_EXPAND = """\
-- What a later release brings: a column on both tables of jobs, and a claim that fills it.
{header}
ALTER TABLE headgate.jobs ADD COLUMN claimed_with text NOT NULL DEFAULT '';
ALTER TABLE headgate.archive ADD COLUMN claimed_with text NOT NULL DEFAULT '';
-- include: functions/claim_v2.sql
-- include: functions/submit_claim_v2.sql
-- include: functions/submit_running_v2.sql
"""
_INDEX = """\
-- headgate: no transaction
{header}
DROP INDEX CONCURRENTLY IF EXISTS headgate.instances_name;
CREATE INDEX CONCURRENTLY instances_name ON headgate.instances (name);
"""


class LaterRelease:
    """Knows two migrations more and claims with a function of its own; earlier releases may go on if `compatible`."""

    def __init__(self, folder: Path, *, compatible: bool = True) -> None:
        root = folder / f"later-{'compatible' if compatible else 'breaking'}"
        self.source = root / "headgate" / "store"
        package = Path(str(resources.files("headgate")))
        shutil.copytree(package, root / "headgate", ignore=shutil.ignore_patterns("__pycache__"))
        self.environ = {"PYTHONPATH": str(root)}
        header = f"-- compatible with: {KNOWN}" if compatible else "-- Nobody else may run on this."
        self._write(f"migrations/{KNOWN + 1:04}_expand.sql", _EXPAND.format(header=header))
        self._write(f"migrations/{KNOWN + 2:04}_index.sql", _INDEX.format(header=header))
        claim = (self.source / "functions/claim_v1.sql").read_text()
        taken = "SET state = 1 /* running */,"
        assert claim.count(taken) == 1
        claim = claim.replace(taken, f"{taken} claimed_with = 'v2',").replace("headgate.claim_v1", "headgate.claim_v2")
        self._write("functions/claim_v2.sql", claim)
        changes = {
            "submit_running": (
                ("headgate.submit_claim_v1(", "headgate.submit_claim_v2("),
                ("topic_no, rank_class, priority, attempt,", "topic_no, rank_class, priority, claimed_with, attempt,"),
                ("coalesce(priority_, 0), 1,", "coalesce(priority_, 0), 'v2', 1,"),
            ),
            "submit_claim": (("headgate.claim_v1(", "headgate.claim_v2("),),
        }
        for function, theirs in changes.items():
            text = (self.source / f"functions/{function}_v1.sql").read_text()
            for old, new in ((f"headgate.{function}_v1(", f"headgate.{function}_v2("), *theirs):
                assert text.count(old) == 1, old
                text = text.replace(old, new)
            self._write(f"functions/{function}_v2.sql", text)
        for module, functions in (("claim.py", ("claim",)), ("submit_claim.py", tuple(changes))):
            text = (self.source / module).read_text()
            for function in functions:
                assert f"FROM headgate.{function}_v1(" in text
                text = text.replace(f"headgate.{function}_v1(", f"headgate.{function}_v2(")
            self._write(module, text)
        settings = root / "headgate" / "domain" / "release.py"
        settings.write_text(settings.read_text().replace('metadata.version("headgate")', repr(VERSION)))

    @property
    def migrations(self) -> tuple[Migration, ...]:
        """All that it knows."""
        return load(self.source)

    def _write(self, name: str, text: str) -> None:
        (self.source / name).write_text(text)
