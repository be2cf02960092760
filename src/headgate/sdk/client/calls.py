"""Unary calls over a channel of their own: reading jobs, waiting for results, administration."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import grpc
import grpc.aio

from headgate.domain.errors import HeadgateError
from headgate.sdk import rpc
from headgate.sdk.addresses import Address, Rotation
from headgate.sdk.errors import Closed
from headgate.sdk.io_log import io_logger
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as producer

log = io_logger("headgate.client")

WAIT_SECONDS: Final = 20.0
"""The longest a single WaitResult stays open: short enough for proxies that cut silent calls."""
GIVE_UP_SECONDS: Final = 10.0
"""What one unary call may take beyond the wait it asks for."""
SILENT_SECONDS: Final = 1.0
"""After so long without an answer a warning is logged. The call continues."""
TERMINAL: Final = frozenset({jobs.STATE_COMPLETED, jobs.STATE_DEAD, jobs.STATE_CANCELLED})
_TRANSIENT: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class Calls:
    """Unary calls to the first address that answers. All methods run on the I/O loop."""

    def __init__(self, addresses: tuple[Address, ...], *, token: str) -> None:
        self._token = token
        self._rotation = Rotation(addresses, chance=random.Random())  # noqa: S311 -- jitter, not a secret
        self._channel: grpc.aio.Channel | None = None
        self._uses: Counter[grpc.aio.Channel] = Counter()
        """How many calls are under way on each channel. Closing a channel cancels all its calls."""
        self._closed = False

    async def get(
        self, job_id: UUID, *, within: float, payload: bool = False, result: bool = False, events: bool = False
    ) -> jobs.JobInfo:
        """Read one job."""
        request = producer.GetJobRequest(id=job_id.bytes, with_payload=payload, with_result=result, with_events=events)

        return await self.call(rpc.GET_JOB, request, within=within, about=("job", str(job_id)))

    async def call(
        self,
        method: rpc.Method[rpc.Asked, rpc.Answered],
        request: rpc.Asked,
        *,
        within: float,
        about: tuple[str, str] | None = None,
    ) -> rpc.Answered:
        """Make one call; `about` is what it asks for, as a noun and a name, for the text of an error."""
        return await self._anywhere(method, request, about, deadline=asyncio.get_running_loop().time() + within)

    async def wait(self, job_id: UUID, *, within: float) -> jobs.JobInfo:
        """Read one job once it is finished, or after `within` seconds."""
        now = asyncio.get_running_loop().time
        deadline, request = now() + within, producer.WaitResultRequest(id=job_id.bytes)
        while True:
            found = await self._anywhere(rpc.WAIT_RESULT, request, ("job", str(job_id)), deadline=deadline)
            if found.state in TERMINAL or now() >= deadline:
                return found

    async def close(self) -> None:
        """End open calls."""
        self._closed = True
        channels = {*self._uses, *(() if self._channel is None else (self._channel,))}
        self._channel = None
        for channel in channels:
            await channel.close()

    async def _anywhere(
        self,
        method: rpc.Method[rpc.Asked, rpc.Answered],
        request: rpc.Asked,
        about: tuple[str, str] | None,
        *,
        deadline: float,
    ) -> rpc.Answered:
        """Make a call at one address after the other. A request to wait contains the time that is left."""
        now, silence = asyncio.get_running_loop().time, Silence(deadline)
        if not isinstance(request, producer.WaitResultRequest):  # else an answer may take long although all is well
            silence.begin(self._rotation.current)
        try:
            while True:
                if self._closed:
                    raise _closed()
                address = self._rotation.current
                channel = self._channel = self._channel or rpc.open_channel(address)
                seconds = max(0.1, min(GIVE_UP_SECONDS, deadline - now()))
                if isinstance(request, producer.WaitResultRequest):
                    request.wait_ms = int(min(WAIT_SECONDS, max(0.0, deadline - now())) * 1000)
                    seconds = request.wait_ms / 1000 + GIVE_UP_SECONDS
                try:
                    found = await self._make(channel, method, request, seconds=seconds)
                except grpc.aio.AioRpcError as error:
                    explained: HeadgateError = rpc.explain(
                        error, address, about=about, answered=self._rotation.has_answered(address)
                    )
                    limited = rpc.rate_limited(error)
                    if limited and now() + limited < deadline:  # nothing was done, and the server is well
                        silence.begin(address, explained)
                        await asyncio.sleep(limited)
                        continue
                    if error.code() not in _TRANSIENT:
                        raise explained from None
                    if not (method.repeatable or rpc.never_arrived(error)):
                        raise rpc.answer_lost(error, address) from None
                else:
                    self._rotation.succeeded()
                    return found
                silence.begin(address, explained)
                pause = 0.0
                if self._channel is channel:  # else another caller moved on already
                    self._channel = None
                    pause = self._rotation.move_on()
                await self._close_unused(channel)
                if now() + pause >= deadline:
                    raise explained
                await asyncio.sleep(pause)
        finally:
            if silence.timer is not None:
                silence.timer.cancel()

    async def _make(
        self,
        channel: grpc.aio.Channel,
        method: rpc.Method[rpc.Asked, rpc.Answered],
        request: rpc.Asked,
        *,
        seconds: float,
    ) -> rpc.Answered:
        self._uses[channel] += 1
        try:
            return await method(channel, request, token=self._token, seconds=seconds)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and (task is None or not task.cancelling()):  # by `close`, and not by the caller
                raise _closed() from None
            raise
        finally:
            self._uses[channel] -= 1
            if not self._uses[channel]:
                del self._uses[channel]
            await self._close_unused(channel)

    async def _close_unused(self, channel: grpc.aio.Channel) -> None:
        """Close a channel that was left, unless calls are under way on it: the last of them closes it."""
        if channel is not self._channel and channel not in self._uses:
            await channel.close()


def _closed() -> Closed:
    return Closed("this Headgate client was closed; make another one")


@dataclass(slots=True)
class Silence:
    """Logs one warning when a call has had no answer for a second."""

    _deadline: float
    _what: tuple[Address, object] = Address(""), ""
    timer: asyncio.TimerHandle | None = None

    def begin(self, address: Address, error: object = "no answer yet") -> None:
        """No answer came from there, or none has come yet."""
        self._what = address, error
        if self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(SILENT_SECONDS, self._warn)

    def _warn(self) -> None:
        address, error = self._what
        left = max(0.0, self._deadline - asyncio.get_running_loop().time())
        log.warning('no_answer server=%s error=%s seconds_left=%.0f effect="trying again"', address, error, left)
