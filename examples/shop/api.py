"""The web app: `uvicorn examples.shop.api:app`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from uuid import UUID

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from examples.shop.jobs import confirm_order, hg, import_catalogue
from examples.shop.models import Order, Product, database
from headgate import NotFound, Refused


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Create the tables; close both connections at the end."""
    await database.create_tables()
    yield
    await hg.close()
    await database.close()


app = FastAPI(title="shop", lifespan=lifespan)


class NewOrder(BaseModel):
    """What a customer sends."""

    customer: str
    article: str
    count: int = Field(gt=0)
    card: str = "4242"


class Accepted(BaseModel):
    """What was stored, and the job that works on it."""

    order: int
    job: UUID


class Import(BaseModel):
    """A catalogue."""

    articles: list[str]
    price: Decimal


class JobView(BaseModel):
    """A job, for a page that shows it."""

    state: str
    attempt: int
    progress: tuple[int, int, str] | None
    last_error: str


@app.post("/orders", status_code=202)
async def create_order(given: NewOrder) -> Accepted:
    """Store the order and its job in one transaction: neither exists without the other."""
    async with database.begin() as session:
        product = await session.get(Product, given.article)
        if product is None:
            raise HTTPException(404, f"no article {given.article}")
        order = Order(
            customer=given.customer, article=given.article, count=given.count, amount=product.price * given.count
        )
        session.add(order)
        await session.flush()  # gives the order its number
        job = await confirm_order.submit_in(session, order.id, given.customer, given.card)
    return Accepted(order=order.id, job=job.id)


@app.post("/imports", status_code=202)
async def create_import(given: Import) -> UUID:
    """Start an import; a second one for the same articles while it runs is the same job."""
    # A hash: a key has a maximum length, and two long lists that begin alike are different imports.
    unique = hashlib.sha256(json.dumps(sorted(given.articles)).encode()).hexdigest()
    return (await import_catalogue.with_options(unique=unique).submit(given.articles, given.price)).id


@app.get("/jobs/{job_id}")
async def show_job(job_id: UUID) -> JobView:
    """How far a job is."""
    try:
        info = await hg.get(job_id)
    except NotFound as error:
        raise HTTPException(404, str(error)) from error
    return JobView(state=info.state, attempt=info.attempt, progress=info.progress, last_error=info.last_error)


@app.delete("/jobs/{job_id}", status_code=204)
async def cancel_job(job_id: UUID) -> None:
    """Cancel a job, whether it waits or runs."""
    try:
        await hg.handle(job_id).cancel(reason="cancelled by the customer")
    except NotFound as error:
        raise HTTPException(404, str(error)) from error
    except Refused as error:
        raise HTTPException(409, str(error)) from error
