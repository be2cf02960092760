"""Notes what passes on a worker's stream: jobs on their arrival, outcomes before they are sent, receipts on theirs."""

from __future__ import annotations

from typing import Any, cast

import grpc.aio

from headgate.sdk import rpc
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import worker_pb2 as pb
from tests.fault.lab.history import Recorder

Item = tuple[str, int, str, str]
"""Job, epoch, kind of outcome, result as text."""


def record(recorder: Recorder) -> None:
    """From now on every stream, and every report without one, of this process is noted."""
    open_work, report, tape = rpc.open_work, rpc.REPORT_OUTCOME, Tape(recorder)

    def open_recorded(channel: grpc.aio.Channel, token: str) -> rpc.WorkCall:
        return cast("rpc.WorkCall", RecordedCall(open_work(channel, token), tape))

    async def report_recorded(
        channel: grpc.aio.Channel, request: pb.ReportOutcomeRequest, *, token: str, seconds: float
    ) -> pb.ReportOutcomeResponse:
        items = [_item(outcome) for outcome in request.outcomes]
        recorder.note("outcome", seq=-1, items=items)
        answer = await report(channel, request, token=token, seconds=seconds)
        tape.receipts(items, answer.receipts)
        return answer

    rpc.open_work = open_recorded
    rpc.REPORT_OUTCOME = report_recorded  # type: ignore[assignment, misc]  # called, never looked at


class Tape:
    """What was sent and not yet answered, over all streams of a worker: an outcome sent again keeps its number."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.streams = 0
        self._sent: dict[int, list[Item]] = {}

    def up(self, stream: int, frame: pb.WorkerFrame) -> None:
        """The worker is about to send this."""
        note = self.recorder.note
        if frame.HasField("hello"):
            hello = frame.hello
            note("hello", stream=stream, worker=hello.worker_id, held=_held(hello.held), resumed=hello.resumed)
        if frame.HasField("outcomes"):
            message = frame.outcomes
            results = message.results or [b""] * len(message.ids)
            items: list[Item] = [
                (raw.hex(), epoch, "completed", result.decode("latin-1"))
                for raw, epoch, result in zip(message.ids, message.epochs, results, strict=True)
            ]
            items += [_item(outcome) for outcome in message.others]
            self._sent[message.seq] = items
            note("outcome", stream=stream, seq=message.seq, items=items)
        if frame.HasField("beat"):
            note("beat", stream=stream, held=len(frame.beat.held.ids))
        if frame.HasField("quiet"):
            note("quiet", stream=stream)

    def down(self, stream: int, frame: pb.ServerFrame) -> None:
        """The worker has received this."""
        note = self.recorder.note
        if frame.HasField("hello_ack"):
            ack = frame.hello_ack
            note("hello_ack", stream=stream, instance=ack.instance, tenant=ack.tenant, lease_s=ack.lease_seconds,
                 beat_s=ack.beat_seconds, lost=_held(ack.lost))  # fmt: skip
        if frame.HasField("receipts"):
            items = self._sent.pop(frame.receipts.seq, None)
            if items is not None:
                self.receipts(items, frame.receipts.exceptions)
        if frame.HasField("jobs"):
            sent = frame.jobs
            places = sent.topics or [0] * len(sent.ids)
            found = zip(sent.ids, sent.epochs, sent.attempts, sent.max_attempts, places, strict=True)
            rows = [(raw.hex(), epoch, n, most, sent.topic_names[at]) for raw, epoch, n, most, at in found]
            note("assign", stream=stream, jobs=rows, lease_until=sent.lease_until_us)
        if frame.HasField("lost"):
            note("lost", stream=stream, held=_held(frame.lost))
        if frame.HasField("cancel"):
            note("cancel", stream=stream, held=_held(frame.cancel))
        for name, there in (
            ("drain", frame.HasField("drain")),
            ("quieted", frame.HasField("quieted")),
            ("beat_ack", frame.HasField("beat_ack")),
        ):
            if there:
                note(name, stream=stream)
        if frame.HasField("error"):
            note("error", stream=stream, code=frame.error.code, about=frame.error_seq)

    def receipts(self, items: list[Item], exceptions: Any) -> None:
        """The server has answered these; what is not listed was applied."""
        codes = {receipt.index: receipt for receipt in exceptions}
        rows = []
        for place, (job, epoch, kind, result) in enumerate(items):
            receipt = codes.get(place)
            code = jobs.RECEIPT_APPLIED if receipt is None else receipt.code
            state = 0 if receipt is None else receipt.state
            rows.append((job, epoch, kind, result, jobs.ReceiptCode.Name(code).removeprefix("RECEIPT_").lower(), state))
        self.recorder.note("receipt", items=rows)


class RecordedCall:
    """A stream that is noted on the tape; all else is the stream's own."""

    def __init__(self, call: rpc.WorkCall, tape: Tape) -> None:
        self._call, self._tape = call, tape
        tape.streams += 1
        self._number = tape.streams
        tape.recorder.note("stream", stream=self._number)

    async def write(self, frame: pb.WorkerFrame) -> None:
        """Noted before it leaves: what was never noted was never sent."""
        self._tape.up(self._number, frame)
        await self._call.write(frame)

    async def read(self) -> object:
        """Noted as soon as it is here."""
        frame = await self._call.read()
        if frame:
            self._tape.down(self._number, cast("pb.ServerFrame", frame))
        else:
            self._tape.recorder.note("stream_end", stream=self._number)
        return frame

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


def _item(outcome: jobs.Outcome) -> Item:
    kind = outcome.WhichOneof("kind") or "completed"
    result = outcome.completed.result.decode("latin-1") if kind == "completed" else ""
    return outcome.id.hex(), outcome.epoch, kind, result


def _held(held: pb.Held) -> list[tuple[str, int]]:
    return [(raw.hex(), epoch) for raw, epoch in zip(held.ids, held.epochs, strict=True)]
