"""The bits of `jobs.flags` and `archive.flags`. SQL has the name beside each number: `flags & 4 /* limit_key */`."""

from __future__ import annotations

from enum import IntFlag
from typing import Final


class JobFlag(IntFlag):
    """What is special about a job. The numbers are stored in rows: they are added to, never reused."""

    PAYLOAD_APART = 1  # its payload is in headgate.payloads
    TAGGED = 2
    LIMIT_KEY = 4
    PAYLOAD_EDITED = 8  # by a redrive
    CANCEL_REQUESTED = 16
    HAS_DEPENDANTS = 32  # other jobs, or a batch, wait for its end
    FROM_SCHEDULE = 64
    COUNTED = 128  # while it runs: against its topic's limits
    WAITS = 256  # for other jobs
    HAS_PARENTS = 512  # it waits, or waited, for other jobs
    IN_BATCH = 1024
    UNIQUE = 2048  # it has a unique key


HAS_RELATIONS: Final = JobFlag.HAS_DEPENDANTS | JobFlag.UNIQUE | JobFlag.HAS_PARENTS | JobFlag.IN_BATCH
"""Rows in other tables connect it with jobs, a batch or a key."""
HAS_OTHER_ROWS: Final = (
    HAS_RELATIONS | JobFlag.PAYLOAD_APART | JobFlag.TAGGED | JobFlag.LIMIT_KEY | JobFlag.FROM_SCHEDULE
)
"""Rows in other tables go with it when retention removes it: a mask of the SQL functions."""
