"""Servers of others: receivers of webhooks that are hostile or slow, and an issuer whose keys cannot be read."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import grpc.aio

from headgate.control.jwt_keys import REFETCH_SECONDS
from headgate.domain.failpoints import SITES
from headgate.sdk import rpc
from headgate.sdk.admin import DeliveryInfo
from headgate.sdk.admin.dispatch import STATUS
from headgate.wire import admin_pb2
from tests.fault.lab.armed_server import ArmedServer
from tests.fault.lab.inject.endpoints import KeyServer, Receivers
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import RED, completed, eventually, submit
from tests.support.jwts import AUDIENCE, ISSUER, claims, key_set, new_key, signed

LOCAL: Final = ("--webhook-allow", "127.0.0.0/8", "--webhook-http", "--webhook-ports", "1024-65535")
HOSTILE: Final = {"/500": "500", "/hang": "within", "/huge": "", "/loop": "302", "/tls": "certificate"}
"""What the record of a request says about each."""
HUGE_MOST: Final = 16 << 20
"""Bytes of an answer without end that the sockets of a request may have taken before it was closed."""
SENDING: Final = sorted(site for site in SITES if site.startswith("webhook"))
GIVEN_UP_SECONDS: Final = 90.0
"""A ping is tried three times, 5 and 30 seconds apart, with 20 % more or less."""


async def _arrived(receivers: Receivers, jobs: list[UUID], *, within: float) -> None:
    async def all_there() -> bool:
        return all(receivers.times[str(job)] for job in jobs)

    await eventually(all_there, f"{len(jobs)} events have arrived", within=within)
    many = {str(job): receivers.ids[str(job)] for job in jobs if len(receivers.ids[str(job)]) != 1}
    assert not many, f"one event, several ids: {many}"
    assert not receivers.forged, "a signature was not valid"


@scenario(
    "F54",
    "webhook target hostile",
    checks=("I16",),
    world={"server_args": LOCAL, "rate": 5.0},
    within=timedelta(minutes=6),
)
async def receivers_are_hostile(world: World) -> None:
    """Each failure is recorded and tried again later; the endpoint that works gets every event meanwhile."""
    receivers, hooks = Receivers(), world.clients[RED].admin.webhooks
    async with receivers.running():
        good = await hooks.create(receivers.url("/good"), ["job.completed"], topics=["fast"])
        receivers.secret = good.secret
        bad = {path: await hooks.create(receivers.url(path), ["job.completed"], topics=["fast"]) for path in HOSTILE}
        given_up = await hooks.test(bad["/500"].id)
        async with world.faulty("hostile receivers"):
            jobs = await submit(world, "fast", 20)
            await completed(world, jobs)
            began = time.monotonic()
            await _arrived(receivers, jobs, within=60)
            world.measured("20 events past five hostile endpoints", f"{time.monotonic() - began:.1f} s")
            for path, word in HOSTILE.items():
                await _recorded(hooks, bad[path].id, path, word)

            async def failed() -> bool:
                return (await hooks.delivery(bad["/500"].id, given_up.id)).state == "failed"

            await eventually(failed, "a delivery is given up, and that is recorded", within=GIVEN_UP_SECONDS)
        assert receivers.requests["/loop-again"] == 0, "a redirect was followed"
        requests = receivers.requests["/huge"]
        assert receivers.sent["/huge"] <= HUGE_MOST * requests, (
            f"{receivers.sent['/huge']} bytes by {requests} requests"
        )
        assert all(world.alive(name) for name in world.server_specs)
        for one in (good, *bad.values()):
            await hooks.delete(one.id)


async def _recorded(hooks: Any, webhook: UUID, path: str, word: str) -> None:
    """Some delivery has failed for the reason of this endpoint, and is tried again later."""

    async def found() -> list[DeliveryInfo]:
        return [
            one
            for one in await hooks.deliveries(webhook, limit=50)
            if one.attempts and one.event != "ping" and word in f"{one.status} {one.error}"
        ]

    await eventually(found, f"a failure of {path} is recorded", within=60)
    if path == "/huge":  # its status is 200: delivered, without the rest of its answer
        return
    assert any(one.next_at is not None for one in await found()), f"{path}: nothing is tried again"


@scenario(
    "F55",
    "crash between webhook send and record",
    checks=("I16",),
    # A job that the load redrives ends twice, and so has two events.
    world={"servers": 1, "server_args": LOCAL, "rate": 5.0, "weights": {"redrive": 0}},
    within=timedelta(minutes=8),
)
async def the_sender_dies(world: World) -> None:
    """At every step of a delivery: the event arrives, and under one id wherever it is sent twice."""
    receivers, hooks = Receivers(), world.clients[RED].admin.webhooks
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    async with receivers.running():
        made = await hooks.create(receivers.url("/good"), ["job.completed"], topics=["fast"])
        receivers.secret = made.secret
        jobs: list[UUID] = []
        for site in SENDING:
            jobs += await submit(world, "fast", 3)
            assert await server.dies_at(site, within=40), f"it did not come to {site}"
        await completed(world, jobs, within=60)
        await _arrived(receivers, jobs, within=120)  # a lease of a delivery is 30 seconds

        async def sent_again() -> bool:
            return any(times > 1 for times in receivers.times.values())

        await eventually(sent_again, "an event that was sent and not recorded is sent again", within=120)
        twice = [job for job, times in receivers.times.items() if times > 1]
        world.measured("events sent more than once", str(len(twice)))
        assert all(len(receivers.ids[job]) == 1 for job in twice), "an event was sent again under another id"
        await hooks.delete(made.id)


@scenario("F56", "JWKS endpoint down, garbage, slow, rotated", checks=("I14",), within=timedelta(minutes=6))
async def the_issuer_misbehaves(world: World) -> None:
    """Known keys stay in use, unknown ones make few requests, and a key that is withdrawn ends with the next answer."""
    issuer, old, new = KeyServer(), new_key("old"), new_key("new")
    issuer.keys = key_set(old)
    await issuer.start()
    file = issuer.issuers(world.folder, issuer=ISSUER, audience=AUDIENCE)
    for spec in world.server_specs.values():
        spec.args = (*spec.args, "--jwt-issuers", str(file))
    try:
        await issuer.stop()
        async with world.faulty("start without keys"):
            for name in world.server_specs:
                await world.restart(name)
            said = await _refusal(world, old)
            assert said == "credentials_unavailable", said
        await issuer.start()
        await _accepted(world, old, within=REFETCH_SECONDS + 15)
        async with world.faulty("issuer down"):
            await issuer.stop()
            await _knock(world, issuer)
            assert await _refusal(world, old) == ""
            await issuer.start()
        for mode in ("garbage", "slow"):
            async with world.faulty(f"issuer answers {mode}"):
                issuer.mode = mode
                await asyncio.sleep(world.lasting(0, REFETCH_SECONDS))
                await _knock(world, issuer)
                assert await _refusal(world, old) == "", mode
        issuer.mode, issuer.keys = "good", key_set(new)
        await _accepted(world, new, within=2 * REFETCH_SECONDS + 15)

        async def withdrawn() -> bool:
            return await _refusal(world, old) == "unauthenticated"

        await eventually(withdrawn, "the old key is trusted no more", within=REFETCH_SECONDS + 15)
    finally:
        await issuer.stop()


def _token(key: Any, **more: Any) -> str:
    return signed(key, claims(tid=RED, **more))


async def _refusal(world: World, key: Any) -> str:
    """What the servers say to a token of this key, past the client, which would try again: empty if all accept it."""
    found = set()
    for name in world.server_specs:
        async with grpc.aio.insecure_channel(world.address(name)) as channel:
            try:
                await STATUS(channel, admin_pb2.StatusRequest(), token=_token(key), seconds=15)
            except grpc.aio.AioRpcError as error:
                found.add(rpc.reported_code(error) or error.code().name)
    return " ".join(sorted(found))


async def _accepted(world: World, key: Any, *, within: float) -> None:
    async def by_all() -> bool:
        return await _refusal(world, key) == ""

    await eventually(by_all, f"tokens of the key {key.kid} are accepted", within=within, every=1.0)


async def _knock(world: World, issuer: KeyServer) -> None:
    """Many tokens with key ids that no one knows: at most one request to the issuer by each server in 30 seconds."""
    before, began = issuer.requests, time.monotonic()
    for number in range(8):
        assert await _refusal(world, new_key(f"unknown-{number}")) == "unauthenticated"
    spans = 1 + (time.monotonic() - began) / REFETCH_SECONDS
    asked = issuer.requests - before
    assert asked <= 2 * spans * len(world.server_specs), f"{asked} requests for keys in {spans:.1f} spans"
