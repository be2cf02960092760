"""What the installation runs with."""

from __future__ import annotations

from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import get
from headgate.api.http.system_report import SystemOut, system_out

TAG = ["health"]


@get("/v1/system", uses="AdminService/GetSystem", tags=TAG)
async def get_system(request: ApiRequest) -> SystemOut:
    """Show what the installation runs with; secrets are masked. Needs the scope `system`."""
    return system_out(await request.cases.system.report(request.caller))
