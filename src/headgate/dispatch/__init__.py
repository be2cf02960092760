"""Dispatch: from demand to claims, from outcomes to receipts. One of each per instance; composed in server.py.

Who is here
- `sessions`: the connected workers; each owns its credit and what it holds. `demand`: sessions that want the same.
- `coordinator`: the only claimer. It reserves credit, claims, deals, gives back; and ticks once a second.
- `watermark`: where a claim need not look. `watchdog`: when it is too early to reap.
- `writer`: group writing. `submits` and `outcomes` are its two uses, `progress` a slower one.
- `renewals`: keeps the leases of what sessions hold, in the `shares` of tenants and sessions. `lease_calls`: leases of
  callers that wait, on another connection and in `turns`. `ports`: what all of them ask of the store.

Who owns which state
- Credit is in the book of a demand, reserved by a claim in flight, kept aside for a quiet worker, or spent. Nothing
  else may hold it. A session that withdraws loses all of it, also what a claim in flight has reserved.
- A job that was claimed is in a session's queue, written to its stream, or on its way back. A session's end moves the
  first, never the second: a worker may come back for it.
- The database decides everything else. What is kept here may be lost at any moment: the lease brings the job back.

What failures do
- A claim or a tick that fails: sessions stay up, it is tried again with a growing, jittered wait.
- A write to a stream that fails: that session ends, and what was never written to it is handed back at once, the frame
  that was cut short included.
- A peer that does not read: nothing more is claimed for it once 4 MiB wait; silence ends it.
- A row that the database refuses: found by halving the flush, and answered alone.
- A flush whose fate is unknown: sent again. Submits then count as resent, outcomes are known by their epoch.
- A service that fails of a bug is logged, counted and restarted, and the instance is not ready meanwhile: half an
  instance must not look alive. A bug that concerns one demand, one flush or one row stops only that.
"""
