"""The outside world of the shop: a bank, a carrier and a mail server. Tests replace or inspect these objects."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from decimal import Decimal


class CardDeclined(Exception):
    """The bank refuses this card, today and tomorrow."""


@dataclass
class Bank:
    """Charges each order once, however often it is asked: the order is the idempotency key."""

    charged: dict[int, Decimal] = field(default_factory=dict)
    down: bool = False

    async def charge(self, order: int, card: str, amount: Decimal) -> None:
        """Raises CardDeclined, or ConnectionError while the bank is down."""
        if self.down:
            raise ConnectionError("the bank does not answer")
        if card == "declined":
            raise CardDeclined("the card is declined")  # without its number: errors are stored and logged
        self.charged[order] = amount


@dataclass
class Carrier:
    """Fetches shipments, if there is a driver."""

    drivers: int = 1
    fetched: list[int] = field(default_factory=list)

    async def fetch(self, order: int) -> bool:
        """True if a driver has taken it."""
        if self.drivers:
            self.fetched.append(order)
        return bool(self.drivers)


@dataclass
class MailServer:
    """A blocking library, as smtplib is one."""

    sent: list[tuple[str, str]] = field(default_factory=list)

    def send(self, to: str, subject: str) -> None:
        """Send one mail."""
        time.sleep(0.001)
        self.sent.append((to, subject))


bank, carrier, mail_server = Bank(), Carrier(), MailServer()
