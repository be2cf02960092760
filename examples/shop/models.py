"""The tables of the shop, and sessions on its database, which is the database of Headgate as well."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

import asyncpg
from sqlalchemy import ForeignKey
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The tables."""


class Product(Base):
    """Something to sell."""

    __tablename__ = "shop_products"

    article: Mapped[str] = mapped_column(primary_key=True)
    price: Mapped[Decimal]
    stock: Mapped[int] = mapped_column(default=0)


class Order(Base):
    """What a customer has ordered. `state` is new, confirmed, shipped or refused."""

    __tablename__ = "shop_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    article: Mapped[str] = mapped_column(ForeignKey("shop_products.article"))
    count: Mapped[int]
    amount: Mapped[Decimal]
    state: Mapped[str] = mapped_column(default="new")


class Database:
    """The engine, made at the first use, so that importing the handlers connects to nothing."""

    def __init__(self) -> None:
        self.url = os.environ.get("SHOP_DATABASE_URL", "")
        self._engine: AsyncEngine | None = None

    @property
    def engine(self) -> AsyncEngine:
        """The engine of this process."""
        if self._engine is None:
            # As libpq URLs, also with a socket: SQLAlchemy's own URLs cannot express all of them.
            self._engine = create_async_engine(
                "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(self.url), pool_size=5
            )
        return self._engine

    async def create_tables(self) -> None:
        """Create what does not exist yet."""
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncSession]:
        """A session in a transaction, committed at the end of the block."""
        async with async_sessionmaker(self.engine, expire_on_commit=False).begin() as session:
            yield session

    async def close(self) -> None:
        """Close the connections of this event loop."""
        if self._engine is not None:
            await self._engine.dispose()
            self._engine = None


database = Database()
