"""A process that only delivers webhooks, as a server does: for tests that kill it.

    python -m tests.support.webhook_process DATABASE_URL

Ends with 0 when nothing is due any more.
"""

from __future__ import annotations

import asyncio
import sys
import time

from headgate.dispatch.webhook_deliverer import WebhookDeliverer
from headgate.domain.egress import EgressRules
from headgate.ops.webhook_http import WebhookHttp
from headgate.store.database import Database
from headgate.store.webhook_deliveries import DeliveryStore


async def main(dsn: str) -> None:
    database = Database(dsn, unsafe=True)
    deliverer = WebhookDeliverer(DeliveryStore(database), WebhookHttp(EgressRules.of(dev=True)), clock=time.time)
    while await deliverer.run_once():
        await deliverer.finished()
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
