"""Log lines on a worker's connection: one when it is lost, a summary at growing intervals, one when it is back."""

from __future__ import annotations

from typing import Final

from headgate.sdk.addresses import Address
from headgate.sdk.io_log import io_logger

log = io_logger("headgate.worker")

FIRST_SUMMARY_SECONDS: Final = 10.0
SUMMARY_SECONDS: Final = 30.0
"""Time between two log lines while no server can be reached; the first one comes earlier."""


class ConnectionLog:
    """Decides which attempts to connect are logged. Each is made every few seconds, by every worker."""

    def __init__(self) -> None:
        self._was_connected = False
        self._since: float | None = None  # when the connection was lost, or first could not be made
        self._summary_due = 0.0
        self._attempts = 0
        self._silent = False

    def connected(self, address: Address, *, instance: str, version: str, now: float) -> None:
        """A server has answered Hello."""
        if self._since is None:
            log.info("connected server=%s instance=%s version=%s", address, instance, version)
        else:
            log.info(
                "connected server=%s instance=%s version=%s after_seconds=%.0f attempts=%d",
                *(address, instance, version, now - self._since, self._attempts),
            )
        self._was_connected, self._since, self._silent, self._attempts = True, None, False, 0

    def failed(self, address: Address, error: Exception, *, now: float) -> None:
        """The stream broke, or could not be opened."""
        self._attempts += 1
        if self._since is None:
            self._since, self._summary_due = now, now + FIRST_SUMMARY_SECONDS
            if self._was_connected:
                log.warning('stream_lost server=%s error=%s effect="trying to reconnect"', address, error)
            else:
                log.warning('not_connected server=%s error=%s effect="no jobs are received"', address, error)
        elif now >= self._summary_due:
            self._summary_due = now + SUMMARY_SECONDS
            log.warning(
                'still_not_connected server=%s error=%s seconds=%.0f attempts=%d effect="no jobs are received"',
                *(address, error, now - self._since, self._attempts),
            )

    def silent(self, address: Address) -> None:
        """A server has accepted the connection, and does not answer Hello."""
        if not self._silent:
            self._silent = True
            log.warning('no_answer server=%s effect="no jobs are received"', address)
