"""A server whose failpoints are armed and disarmed while it runs, and what a load balancer thinks of a server."""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from tests.fault.lab.armed import EXIT_CODE
from tests.fault.lab.steps import eventually, printed, seen
from tests.fault.lab.world import World

_HEALTH: Final = "/grpc.health.v1.Health/Check"


class ArmedServer:
    """A server whose plan is a file that changes while it runs."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self.name = world, name
        self._plan = world.folder / f"{name}.plan"
        world.server_specs[name].armed = f"@{self._plan}"

    def plan(self, text: str) -> None:
        """From the next hit on."""
        fresh = self._plan.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self._plan)

    def disarm(self) -> None:
        """No more failpoints."""
        self._plan.unlink(missing_ok=True)

    async def meets(self, site: str, action: str, *, within: float = 15.0) -> None:
        """Do this at the next hit of a site, once, and wait until it happened."""
        pattern = f"failpoint site={site} "
        before = seen(self._world, self.name, pattern)
        self.plan(f"{site}={action}@once")
        await printed(self._world, self.name, pattern, times=before + 1, within=within)

    async def dies_at(self, site: str, *, first: str = "", within: float = 15.0) -> bool:
        """Kill it there, and start it again; False if it did not come there in time. `first` are rules besides."""
        process = self._world.servers[self.name]
        self._world.expect_end(self.name)
        self.plan(f"{first}\n{site}=exit")

        async def dead() -> bool:
            return process.exit_code is not None

        try:
            await eventually(dead, f"{self.name} died at {site}", within=within)
        except AssertionError:
            self.disarm()
            return False
        self.disarm()
        assert process.exit_code == EXIT_CODE, f"{self.name} ended with {process.exit_code} at {site}"
        self._world.fault("start", f"exit at {site}")
        await self._world.start(self.name)
        self._world.fault("stop", f"exit at {site}")
        return True


async def is_ready(address: str, *, seconds: float = 3.0) -> bool:
    """What a load balancer would find on a new connection."""
    async with grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        ask = channel.unary_unary(
            _HEALTH,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await ask(health_pb2.HealthCheckRequest(), timeout=seconds)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def readiness_is(world: World, server: str, *, ready: bool, within: float = 15.0) -> None:
    """Wait until a load balancer would find it so."""

    async def so() -> bool:
        return await is_ready(world.address(server), seconds=2.0) == ready

    await eventually(so, f"{server} is {'ready' if ready else 'not ready'}", within=within)
