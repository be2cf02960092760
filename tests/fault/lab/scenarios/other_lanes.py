"""Faults that are not brought about here: other lanes test them."""

from __future__ import annotations

from typing import Final

from tests.fault.lab.scenarios import elsewhere

FAILOVER: Final = "make failover"

elsewhere("F43", "Patroni failover, synchronous", f"{FAILOVER} PARTS=rounds")
elsewhere("F44", "Patroni failover, asynchronous: the control", f"{FAILOVER} PARTS=control")
elsewhere("F45", "synchronous standby lost", f"{FAILOVER} PARTS=standby")
elsewhere("F46", "PgBouncer in the path", f"{FAILOVER} PARTS=pooler; make test: tests/fault/test_pooler.py")
elsewhere("F47", "restore to an older backup", f"{FAILOVER} PARTS=backup; make test: tests/fault/test_restored.py")
