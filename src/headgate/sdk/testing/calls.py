"""The calls of a client that a box answers itself: jobs by id, and batches. All others need a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from google.protobuf.message import Message

from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.ids import JobId, id_from_bytes
from headgate.domain.validation import MILLISECOND, check_payload
from headgate.sdk import batches, rpc
from headgate.sdk.admin import jobs as admin_jobs
from headgate.sdk.errors import OutsideBox, SubmitRefused
from headgate.sdk.rpc import Answered, Asked, Method
from headgate.sdk.testing.messages import batch_message, batch_of, change_message, job_message, submission_of
from headgate.sdk.testing.store import BoxStore
from headgate.wire import admin_pb2 as admin
from headgate.wire import batches_pb2
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as producer

_ELSEWHERE: Final = "call it outside of `with hg.testing()`, or test it with the fixture headgate_app"


class BoxCalls:
    """Answers unary calls from the store of a box."""

    def __init__(self, store: BoxStore, *, on_cancel: Callable[[JobId], None]) -> None:
        self._store, self._on_cancel = store, on_cancel
        self._answers: Mapping[str, Callable[[Any], Message]] = {
            rpc.GET_JOB.path: self._get,
            admin_jobs.CANCEL.path: self._cancel,
            admin_jobs.REDRIVE.path: self._redrive,
            batches.OPEN.path: self._open_batch,
            batches.SEAL.path: self._seal_batch,
            batches.GET.path: self._get_batch,
        }

    def call(self, method: Method[Asked, Answered], request: Asked) -> Answered:
        """Answer one call, or raise what the client of a server would get."""
        answer = self._answers.get(method.path)
        if answer is None:
            raise OutsideBox(f"{method.path} needs a server, and the box has none; {_ELSEWHERE}")
        try:
            return cast("Answered", answer(request))
        except InvalidInput as error:
            problem = str(error).removeprefix(f"{error.field}: ")
            raise SubmitRefused(error.field, problem, reported=error.code) from None

    def _get(self, request: producer.GetJobRequest) -> jobs.JobInfo:
        if request.with_events:
            raise OutsideBox(f"the box keeps no history of jobs; {_ELSEWHERE}")
        job = self._store.get(id_from_bytes(request.id))
        return job_message(self._store, job, payload=request.with_payload, result=request.with_result)

    def _cancel(self, request: admin.CancelJobsRequest) -> admin.JobsResponse:
        def cancel(job_id: JobId) -> bool:
            changed = self._store.cancel(job_id)
            if changed:
                self._on_cancel(job_id)
            return changed

        return self._each(request.ids, cancel)

    def _redrive(self, request: admin.RedriveJobsRequest) -> admin.JobsResponse:
        payload = check_payload(request.payload) if request.HasField("payload") else None

        def redrive(job_id: JobId) -> bool:
            self._store.redrive(job_id, payload=payload, delay=request.delay_ms * MILLISECOND)
            return True

        return self._each(request.ids, redrive)

    def _each(self, ids: Iterable[bytes], change: Callable[[JobId], bool]) -> admin.JobsResponse:
        results: list[admin.JobChange] = []
        for job_id in map(id_from_bytes, ids):
            changed, error = False, None
            try:
                changed = change(job_id)
            except HeadgateError as problem:
                error = problem
            job = self._store.jobs.get(job_id)
            results.append(change_message(job_id, None if job is None else job.state, changed=changed, error=error))
        return admin.JobsResponse(results=results)

    def _open_batch(self, request: batches_pb2.OpenBatchRequest) -> batches_pb2.BatchInfo:
        callback = submission_of(request.on_done) if request.HasField("on_done") else None
        return batch_message(self._store, self._store.open_batch(batch_of(request), callback, {}))

    def _seal_batch(self, request: batches_pb2.SealBatchRequest) -> batches_pb2.BatchInfo:
        batch = self._store.batch(id_from_bytes(request.id))
        self._store.seal(batch)
        return batch_message(self._store, batch)

    def _get_batch(self, request: batches_pb2.GetBatchRequest) -> batches_pb2.BatchInfo:
        return batch_message(self._store, self._store.batch(id_from_bytes(request.id)))
