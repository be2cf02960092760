"""Job ids chosen here, before the first send, so that a submit repeated after a lost reply is the same job."""

from __future__ import annotations

import os
import time

from headgate.domain.ids import JobIdMaker


def new_id_maker() -> JobIdMaker:
    """A maker over this machine's clock and entropy; share one per client, so that its ids keep their order."""
    return JobIdMaker(clock_ms=_unix_ms, entropy=os.urandom)


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
