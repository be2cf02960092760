"""The eleven handlers of the shop. Each shows something; the comment above it says what."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta
from decimal import Decimal

from sqlalchemy import func, select, update

from examples.shop.models import Order, Product, database
from examples.shop.services import CardDeclined, bank, carrier, mail_server
from headgate import Fail, Headgate, Job, Nack, Rate, RetryPolicy, Snooze, Unique, this_job

hg = Headgate()
MAIL_RATE = Rate(count=50, period=timedelta(seconds=1))  # what the mail provider allows
SOON = RetryPolicy.exponential_equal_jitter(timedelta(milliseconds=200), cap=timedelta(minutes=5))


# 1. Submitted in the transaction of the web request (api.py); submits the jobs of an order, which depend on each other.
@hg.job("confirm-order", priority="high")
async def confirm_order(order: int, customer: str, card: str) -> list[str]:
    """Charge and reserve at the same time; ship when both are done, and write the invoice when the order is paid."""
    async with database.begin() as session:
        row = await session.get_one(Order, order)
        article, count, amount = row.article, row.count, row.amount
    # The key: if this handler runs twice, the second run finds the jobs of the first.
    charge = await charge_card.with_options(key=f"charge-{order}").submit(order, card, amount)
    reserve = await reserve_stock.with_options(key=f"reserve-{order}").submit(order, article, count)
    ship = await ship_order.with_options(key=f"ship-{order}", depends_on=[charge, reserve]).submit(order, customer)
    invoice = await render_invoice.with_options(key=f"invoice-{order}", depends_on=[charge]).submit(order, str(amount))
    return [str(handle.id) for handle in (charge, reserve, ship, invoice)]


# 2. Retries with backoff, a time limit, and an error that no retry can heal.
@hg.job("charge-card", max_attempts=8, retry=SOON, time_limit=10)
async def charge_card(order: int, card: str, amount: Decimal) -> str:
    """ConnectionError is retried; a declined card ends the job at once, and the jobs that need it are cancelled."""
    try:
        await bank.charge(order, card, amount)
    except CardDeclined as error:
        raise Fail(str(error), permanent=True) from error
    return f"charged {amount}"


# 3. A change in the database that is safe to repeat.
@hg.job("reserve-stock", retry=SOON)
async def reserve_stock(order: int, article: str, count: int) -> int:
    """Take the goods from the stock, once: the state of the order says whether that was done before."""
    async with database.begin() as session:
        row = await session.get_one(Order, order, with_for_update=True)
        if row.state == "new":
            stock = update(Product).where(Product.article == article, Product.stock >= count)
            left = await session.scalar(stock.values(stock=Product.stock - count).returning(Product.stock))
            if left is None:
                raise Nack(delay=timedelta(minutes=10), reason=f"{article} is out of stock")
            row.state = "confirmed"
            if left < 3:
                # One live job per article; while orders keep coming it is put off, for 5 s at most.
                unique = Unique(key=article, on_conflict="reschedule", debounce_max=timedelta(seconds=5))
                await refresh_search.with_options(unique=unique, delay=0.5).submit_in(session, article)
    return count


# 4. Waits for its parents; asks for time without using an attempt.
@hg.job("ship-order", max_attempts=5, retry=SOON)
async def ship_order(order: int, customer: str) -> str:
    """Snooze while no driver is there: that is no failure."""
    if not await carrier.fetch(order):
        raise Snooze(timedelta(seconds=30))
    async with database.begin() as session:
        row = await session.get_one(Order, order)
        row.state = "shipped"
    mail = send_email.with_options(limit_key=customer, key=f"shipped-{order}")
    await mail.submit(customer, f"Order {order} is shipped")
    return "shipped"


# 5. CPU-bound work in another process.
@hg.job("render-invoice", run_in="process")
def render_invoice(order: int, amount: str) -> str:
    """A module-level function: the child process imports it by name."""
    page = f"invoice of order {order}: {amount}".encode()
    for _ in range(2_000):
        page = hashlib.sha256(page).digest()
    return page.hex()[:12]


# 6. A blocking library in a thread; its limits hold for all workers together, and an operator can change them.
@hg.job("send-email", max_attempts=10, retry=SOON, rate=MAIL_RATE, max_running_per_key=1)
def send_email(to: str, subject: str) -> None:
    """A plain function runs in a thread. One mail at a time to each customer: the customer is the limit key."""
    mail_server.send(to, subject)


# 7. Progress, a handler that ends cleanly when it is cancelled, and a batch that is safe to repeat.
@hg.job("import-catalogue")
async def import_catalogue(articles: list[str], price: Decimal, *, job: Job = this_job) -> str:
    """Submit a batch: one job for each article, and one when all have ended.

    If an attempt is lost, the next one finds its batch by the id, and its members by their keys.
    """
    async with hg.batch("catalogue", on_done=import_done.bind(len(articles)), id=job.id) as batch:
        if (await batch.status()).sealed:  # the attempt before this one has submitted everything
            return str(batch.id)
        for number, article in enumerate(articles, 1):
            job.raise_if_cancelled()
            member = import_article.with_options(key=f"{job.id}-{number}")
            await batch.submit(member, article, price)
            await job.progress(number, len(articles), article)
    return str(batch.id)


# 8. A member of a batch, with low priority: orders come first.
@hg.job("import-article", priority="bulk", retry=SOON)
async def import_article(article: str, price: Decimal) -> str:
    """Insert or update one product."""
    async with database.begin() as session:
        await session.merge(Product(article=article, price=price, stock=10))
    return article


# 9. The callback of a batch.
@hg.job("import-done")
async def import_done(expected: int) -> str:
    """Runs when every member has ended, whatever its end was."""
    async with database.begin() as session:
        count = await session.scalar(select(func.count()).select_from(Product))
    return f"{expected} articles imported, {count} in the shop"


# 10. Unique: submitted by reserve_stock, again and again, and run once.
@hg.job("refresh-search")
async def refresh_search(article: str) -> str:
    """Tell the search engine that an article is nearly sold out."""
    await asyncio.sleep(0)
    return f"{article} is nearly sold out"


# 11. A schedule, at most one at a time, and one run for all that were missed.
@hg.cron("30 2 * * *", zone="Europe/Zurich", overlap="skip", catch_up="one")
@hg.job("nightly-report", priority="bulk", time_limit=timedelta(minutes=5))
async def nightly_report(*, job: Job = this_job) -> dict[str, int]:
    """Count orders by state."""
    job.logger.info("report for %s", job.occurrence or job.created_at)
    async with database.begin() as session:
        rows = await session.execute(select(Order.state, func.count()).group_by(Order.state))
        return dict(rows.all())
