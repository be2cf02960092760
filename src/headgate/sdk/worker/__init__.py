"""The worker: who runs where, who owns what, and what each failure does.

**Actors.**
- The *I/O thread* (`io_thread`), one for the process, runs `WorkerStream`, which reads and writes frames, and
  `WorkerProtocol`, which decides everything: what we hold (`Ledger`), what we owe (`Outbox`), when to beat, whom to
  stop, how to end (`StopSequence`). The protocol does no I/O and reads no clock: frames, events and the time go in,
  frames and `Actions` come out.
- The *user's loop*: `LoopSlots`, long-lived tasks that run async handlers.
- *Threads* (`ThreadSlots`) for plain handlers, *processes* (`ProcessSlots`) for CPU-bound ones: each child has a pipe
  and a thread here that serves it.

- *Threads* for what must not delay the I/O thread: one writes its log lines (`io_log`) and those of attempts, one calls
  the hooks for failures (`AttemptLog`), one runs plain hooks. Middleware (`middleware`) runs where its handler runs.

**Crossings.** Jobs go from the stream to the slots once per frame. Outcomes come back by `WorkerStream.report`: append
to a deque, and wake the I/O loop unless it is woken already. So there are as many crossings as frames, not as jobs.
When the writer is idle a single outcome leaves at once; while it writes, outcomes gather for the next frame, which also
carries the credit of their slots.

**State.** Only the I/O loop calls the protocol. A `HeldJob` is shared: the I/O loop sets its flags (cancel_requested,
lost, abandoned) and its slot reads them; `slot_task` belongs to the user's loop. A job is *held* from delivery until
its outcome is acknowledged, and every beat and every Hello lists all that is held, started or not.

**Failures.**

- A handler blocks the user's loop: beats go on, threads go on, other async handlers wait.
- The stream breaks, or the server leaves a beat unanswered: reconnect, jittered, to the next address; declare what is
  held; send unanswered outcomes again. Handlers never notice.
- The server no longer counts a job as ours (`lost`): stop its handler, send no outcome. Its slot is free when the
  handler has ended.
- The same (id, epoch) is delivered again: ignored. A newer epoch of a running job: the older run counts as lost.
- The server drains: no more credit there, unstarted jobs go back, started ones finish, then the next address.
- A cancel is asked for: the flag at once; the task is cancelled after a grace, or at once if the handler takes no Job.
- A handler ignores its cancellation: said once (`did_not_stop`), and its slot stays taken; a process is ended. All
  slots taken like that: said once (`all_slots_stuck`); beats go on, nothing more is asked for.
- A handler runs over its time limit: stopped as by a cancellation, Failed. One that cannot be stopped is Failed as
  well, and its slot stays taken until it ends.
- A child process dies: Failed, with the way it died; a new one for the next job. We die: our children end.
- A handler raises, SystemExit included: Failed; the worker lives. The error is logged once the server has answered,
  with what follows, or at the end of the worker if it never did.
- A hook raises or does not end: `hook_failed` is logged; the outcome of the job stays. The output of the log blocks:
  lines wait, past a bound they are dropped and counted; beats go on.
- A job's topic has no handler here: Abandon, one warning, and the topic is left out of later Readys.
- Outcomes are not answered (the server's database is down): sent again; past a bound, no more jobs are asked for. A
  frame that the server names as refused for now is sent again by itself; one it will never take is given up.
- The token is refused, or the worker id is used elsewhere: `run()` raises.
- SIGTERM, `stop()`, a Stop of an operator: see `stop_sequence`. A second signal or `stop()` does not wait for handlers.
  A handler that keeps a drained process from ending is left by `os._exit` (`forced_exit`), and so is output that
  blocks.
- SIGKILL: the connection closes, and the server ends the leases after the reconnect grace. This costs attempts, as does
  a connection that is lost for longer than that.
"""

from headgate.sdk.worker.worker import Worker, WorkerOptions

__all__ = ["Worker", "WorkerOptions"]
