"""The producing side: jobs on their way, on the I/O thread.

- `frames`: what one call submits (one job, or a page of `submit_many`), and how submits become frames.
- `capacity`: the bound on submits that are not answered yet.
- `producer`: the outbox and the Produce stream. A submit leaves it when it is answered or its deadline passes.
- `calls`: reading and waiting, by unary calls.

A caller appends its submit and wakes the I/O loop, unless it is awake already; what arrives while a frame is being
written goes out in the next one. Answers go back to each waiting loop in one crossing per reply.
A broken stream costs the caller nothing but time: submits that were sent are sent again, marked as sent before, so that
the server looks for the same job; ids are chosen before the first send, so there is never a second job.
"""

import os

# Before anything here imports gRPC, which reads it then. Its own care for forks does not know grpc.aio: one in six
# children of a process that had used a client crashed in it, before `io_thread` could raise ForkedProcess.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
