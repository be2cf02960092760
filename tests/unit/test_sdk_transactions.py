"""`submit_in` before any database: which connections it takes, what it loads, and what goes to the box of a test."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from headgate import Headgate, InvalidInput, JobHandle, PayloadError, SyncHandle, SyncHeadgate
from headgate.sdk.drivers import driver_of
from headgate.testing.attached import AttachedApp


def make_app() -> Headgate:
    app = Headgate("127.0.0.1:1")

    @app.job("greet")
    async def greet(name: str) -> str:
        return f"hello {name}"

    return app


@pytest.mark.parametrize("given", [None, object(), 3, b"default", sys])
def test_what_is_no_connection_is_refused_with_what_is_supported(given: Any) -> None:
    with pytest.raises(InvalidInput, match="asyncpg, psycopg 3, SQLAlchemy 2 or Django") as refused:
        make_app().tasks["greet"].submit_in(given, "Ann")
    assert refused.value.field == "connection"


def test_classes_of_another_module_with_the_same_name_are_refused() -> None:
    class Session:
        pass

    with pytest.raises(InvalidInput, match=r"cannot be a .*\.Session"):
        driver_of(Session())


def test_subclasses_are_recognised() -> None:
    class OfAnApplication(Session):
        pass

    assert not driver_of(OfAnApplication()).is_async
    assert driver_of(AsyncSession()).is_async


def test_an_alias_needs_django(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "django.db", raising=False)
    with pytest.raises(InvalidInput, match="'orders', and Django is not in use here"):
        make_app().tasks["greet"].submit_in("orders", "Ann")


def test_arguments_are_checked_first() -> None:
    with pytest.raises(PayloadError, match="name"):
        make_app().tasks["greet"].submit_in("default", name=3)


@pytest.mark.parametrize("tenant", ["", "Acme", "a" * 64, 3])
def test_a_tenant_is_a_name(tenant: object) -> None:
    with pytest.raises(InvalidInput, match="tenant"):
        Headgate("127.0.0.1:1", tenant=tenant)


async def test_in_a_test_the_job_goes_to_the_box_and_the_transaction_is_not_used() -> None:
    app = make_app()
    greet = app.tasks["greet"]
    with app.testing() as box:
        now = greet.submit_in(Session(), "Ann")
        later = await greet.with_options(priority=3).submit_in(AsyncSession(), "Bob")
        assert isinstance(now, SyncHandle)
        assert isinstance(later, JobHandle)
        assert [(job.id, job.arguments) for job in box.submitted] == [
            (now.id, {"name": "Ann"}),
            (later.id, {"name": "Bob"}),
        ]
        assert box.submitted[1].options == {"priority": 3}
        greet.submit_many_in(Session(), [("Cem",)])
        await greet.submit_many_in(AsyncSession(), [("Dora",), ("Eva",)])
        blocking = app.sync
        blocking.submit_in(Session(), greet, "Finn")
        blocking.submit_many_in(Session(), greet, [("Gil",)])
        blocking.submit_to_in(Session(), "greet", {"name": "Hana"})
        names = [job.arguments["name"] for job in box.submitted]
        assert names == ["Ann", "Bob", "Cem", "Dora", "Eva", "Finn", "Gil", "Hana"]


def test_a_blocking_client_has_the_tenant_of_its_submits() -> None:
    assert SyncHeadgate("127.0.0.1:1", tenant="acme")._connection.tenant == "acme"
    for option in ({"tenant": "acme"}, {"token": "t"}, {"ca": "ca.pem"}):
        with pytest.raises(InvalidInput, match="is given beside a client"):
            SyncHeadgate(make_app(), **option)


def test_an_app_attached_to_a_server_of_a_test_submits_for_the_tenant_of_the_test() -> None:
    app = Headgate("127.0.0.1:1", tenant="acme")
    with AttachedApp(app, url="127.0.0.1:1", tenant="test-1"):
        assert app._connection.tenant == "test-1"
    assert app._connection.tenant == "acme"


def test_no_database_library_is_imported() -> None:
    code = """
import sys
from headgate import Headgate
app = Headgate("127.0.0.1:1")
task = app.register("greet", lambda name: name)
try:
    task.submit_in(object(), "Ann")
except Exception as error:
    print(type(error).__name__)
print({"asyncpg", "django", "psycopg", "sqlalchemy"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "InvalidInput\nset()\n"
