"""`headgate` with one more service: a call that does nothing, to tell what a call costs by itself.

It is no part of the public contract. Only the lane that measures it starts its server by this program.
"""

from __future__ import annotations

import sys

from headgate.api.grpc.methods import Context, grpc_service, unary
from headgate.cli import main
from headgate.control.permissions import RULES, Rule, TenantRule, TopicRule
from headgate.domain import limits
from headgate.domain.identity import Scope
from headgate.server import Server
from headgate.wire import producer_pb2 as pb

SERVICE = "headgate.v1.BenchService"


async def echo(request: pb.SubmitRequest, _call: Context) -> pb.SubmitResponse:
    """What a call of the size of Submit costs without any work."""
    return pb.SubmitResponse(receipt=pb.SubmitReceipt(id=request.job.id))


def add_echo() -> None:
    """To every server that this process starts."""
    rule = Rule(
        scopes=(Scope.SUBMIT,),
        tenant=TenantRule.NONE,
        topics=(TopicRule.NONE,),
        max_bytes=limits.JOB_REQUEST_MAX_BYTES,
    )
    rules = {**RULES, f"/{SERVICE}/Echo": rule}
    Server.rules = rules
    Server.extra_services = (
        grpc_service(SERVICE, {"Echo": unary(echo, pb.SubmitRequest, pb.SubmitResponse)}, rules=rules),
    )


if __name__ == "__main__":
    add_echo()
    sys.exit(main())
