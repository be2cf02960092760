"""Reports that no slot becomes free: a worker that renews leases and takes no jobs looks healthy from outside."""

from __future__ import annotations

from typing import Final

from headgate.sdk.io_log import io_logger
from headgate.sdk.worker.held_job import STARTED, HeldJob

log = io_logger("headgate.worker")

LOOK_SECONDS: Final = 5.0
STUCK_SECONDS: Final = 300.0
"""All slots taken and none freed for this long is logged once, as a warning: long jobs may be intended."""
STOPPING_SECONDS: Final = 10.0
"""The same when every handler was asked to stop."""


class StuckSlots:
    """Logs, once each time, that no handler ends."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._since: dict[HeldJob, float] = {}
        """When each running handler was first seen; those of lost jobs too, which are no longer held."""
        self._logged = False

    def look(self, running: list[HeldJob], now: float) -> None:
        """See which handlers run, and since when."""
        for job in running:
            if job.began_at:  # others have been given to the slots, and wait there
                self._since.setdefault(job, now)
        self._since = {job: since for job, since in self._since.items() if job.stage == STARTED}
        if len(self._since) < self._slots:
            self._logged = False
            return
        all_asked = all(job.cancel_requested for job in self._since)
        seconds = now - max(self._since.values())
        if self._logged or seconds < (STOPPING_SECONDS if all_asked else STUCK_SECONDS):
            return
        self._logged = True
        oldest = min(self._since, key=self._since.__getitem__)
        log.warning(
            "all_slots_stuck slots=%d seconds=%.0f all_asked_to_stop=%s topic=%s job_id=%s job_seconds=%.0f "
            'effect="leases are renewed, but no job is taken until a handler ends"',
            *(self._slots, seconds, "yes" if all_asked else "no"),
            *(oldest.topic, oldest.id, now - oldest.began_at),
        )
