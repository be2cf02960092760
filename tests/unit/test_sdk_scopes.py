"""The scopes that texts of the SDK name are those that the authorisation table requires."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from headgate.control.permissions import RULES
from headgate.domain.identity import Scope

SDK: Final = Path(__file__).parents[2] / "src/headgate/sdk"
_NAMED: Final = re.compile(
    r"\bscopes? `?(submit|work|read|operate|admin|system)\b"
    r"|\b(?:needs?|or|looking|reading) `(submit|work|read|operate|admin|system)`"
)
OWN: Final = "own"
"""What the text says concerns the caller's tenant."""
ALL: Final = "all"
"""It concerns all tenants."""
# By place of a text that names scopes: the methods that it speaks of, and for whose tenants.
TEXTS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "admin/audit.py AuditEntry": (("AdminService/ListAudit", ALL),),
    "admin/audit.py AuditList": (("AdminService/ListAudit", ALL),),
    "admin/client.py Admin": (("AdminService/CancelJobs", OWN), ("AdminService/Status", OWN)),
    "admin/client.py Admin.keys": (("KeyService/CreateKey", OWN),),
    "admin/client.py Admin.pause": (("AdminService/Pause", ALL),),
    "admin/client.py Admin.sessions": (("KeyService/ListSessions", OWN),),
    "admin/client.py Admin.system": (("AdminService/GetSystem", ALL),),
    "admin/client.py Admin.tenants": (("TenantService/SetTenant", ALL),),
    "admin/keys.py KeysAdmin": (("KeyService/ListKeys", ALL),),
    "admin/keys.py KeysAdmin.create": (("KeyService/CreateKey", ALL),),
    "admin/retention.py RetentionAdmin": (("AdminService/SetRetention", ALL), ("AdminService/RunRetention", ALL)),
    "admin/schedules.py Schedules": (("ScheduleService/Put", OWN), ("ScheduleService/List", OWN)),
    "admin/sessions.py SessionsAdmin": (("KeyService/ListSessions", ALL),),
    "admin/system.py": (("AdminService/GetSystem", ALL),),
    "admin/tenants.py TenantsAdmin": (("TenantService/SetTenant", ALL), ("TenantService/ListTenants", ALL)),
    "admin/webhooks.py WebhooksAdmin": (("WebhookService/Create", OWN), ("WebhookService/Get", OWN)),
    "background.py store_declared": (("ScheduleService/Put", OWN),),
    "handles.py JobHandle.cancel": (("AdminService/CancelJobs", OWN),),
    "schedules.py": (("ScheduleService/Put", OWN),),
}


def texts(node: ast.AST, *path: str) -> Iterator[tuple[str, str]]:
    """Every string of a module with the class or function that it is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield ".".join(path), child.value
        named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name
        yield from texts(child, *path, *([named] if named else []))


def found() -> dict[str, set[str]]:
    """The scopes that are named, by place."""
    places: dict[str, set[str]] = {}
    for file in sorted(SDK.rglob("*.py")):
        for path, text in texts(ast.parse(file.read_text())):
            if re.search(r"\bscopes?\b", text) and (names := {one or two for one, two in _NAMED.findall(text)}):
                places.setdefault(f"{file.relative_to(SDK)} {path}".strip(), set()).update(names)
    return places


FOUND: Final = found()


def required(method: str, reach: str) -> set[str]:
    """The scopes that permit a method, for the caller's tenant or for all."""
    scopes = set(RULES[f"/headgate.v1.{method}"].scopes)
    return (
        {scope.value for scope in scopes & {Scope.SYSTEM} or scopes}
        if reach == ALL
        else {scope.value for scope in scopes - {Scope.SYSTEM}}
    )


def test_each_text_that_names_a_scope_is_compared() -> None:
    assert set(FOUND) == set(TEXTS)


@pytest.mark.parametrize("place", sorted(TEXTS))
def test_the_sdk_names_the_scopes_that_are_required(place: str) -> None:
    assert FOUND[place] == {scope for method, reach in TEXTS[place] for scope in required(method, reach)}
