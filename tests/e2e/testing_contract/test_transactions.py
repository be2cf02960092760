"""A submit in a transaction reaches the tenant of the test, and the box."""

from __future__ import annotations

from headgate import Headgate
from headgate.store.connect import connect
from headgate.testing import LocalServer


async def test_a_submit_in_a_transaction_goes_where_the_app_is_attached(the_server: LocalServer) -> None:
    app = Headgate("127.0.0.1:1")

    @app.job("double")
    async def double(n: int) -> int:
        return n * 2

    db = await connect(the_server.database_url, application_name="headgate test")
    try:
        with the_server.attach(app) as attached:
            async with db.transaction():
                handle = await double.submit_in(db, 4)
            await attached.drain(timeout=60)
            assert await handle.result() == 8
            assert (await handle.info()).tenant == attached.tenant
        with app.testing() as box:
            async with db.transaction():
                await double.submit_in(db, 5)
            assert (await box.drain()).results == [10]
    finally:
        await db.close()
