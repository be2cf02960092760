"""System: settings in effect, versions, migrations, tables, slow statements, and a bundle for support."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from litestar import Response

from headgate.api.http.system_report import system_out
from headgate.web.request import Html, PageRequest
from headgate.web.routing import page


@page("/system", uses="AdminService/GetSystem")
async def system(request: PageRequest) -> Html:
    """All of it."""
    report = await request.cases.system.report(request.caller)
    status = await request.cases.admin.status(request.caller)
    return request.render("system/index.html", fragment="system/_facts.html", report=report, status=status)


@page("/system/bundle", uses="AdminService/GetSystem", download=True)
async def support_bundle(request: PageRequest) -> Response[bytes]:
    """The same as a file, with the health of this instance: what a person who helps asks for first."""
    report = await request.cases.system.report(request.caller)
    health = await request.cases.health.details(request.caller)
    made = datetime.now(UTC)
    bundle = {"made_at": made, "system": system_out(report), "health": health}
    return Response(
        msgspec.json.format(msgspec.json.encode(bundle, enc_hook=str), indent=2),
        media_type="application/json",
        headers={"content-disposition": f'attachment; filename="headgate-support-{made:%Y%m%d-%H%M%S}.json"'},
    )
