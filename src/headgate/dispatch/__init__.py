"""Dispatch: from demand to claims, from outcomes to receipts. One of each per instance; composed in server/.

The actors
- `session`, `sessions`: the connected workers; each owns its credit and what it holds. `delivery`: what they are sent.
  `session_rules`, `worker_calls`: what workers may ask for, on a stream and by single calls.
- `demand`, `demands`: sessions that want the same share a claim. `watermark`, `sweeps`: where a claim need not look.
- `claimer`: the only one that claims. It reserves credit, claims, deals, gives back.
- `ticker`: one call a second finds what is due, pending or expired (`tick_times`: when; `watchdog`: not right after an
  outage). `gate`: what is paused or quiet. `limit_timers`: topics that limits hold back.
- `wakes`: what says that there may be work, here and to the other instances. `listener`: what they say.
- `writer`: group writing. `submits` (with `locked`) and `outcomes` (with `outcome_writes`) are its two uses, `progress`
  a slower one.
- `renewals`: keeps the leases of what sessions hold, in the `shares` of tenants and sessions. `lease_calls`: leases of
  callers that wait, on another connection and in `turns`. `lost_workers`: leases of workers that do not come back.
- `scheduler`, `unblocker`, `bulk_runner`, `retention`, `maintenance`, `presence`: the services beside them.
- `ports`: what all of them ask of the store.

Who owns which state
- Credit is in the book of a demand, reserved by a claim in flight, kept aside for a quiet worker, or spent. Nothing
  else may hold it. A session that withdraws loses all of it, also what a claim in flight has reserved.
- A job that was claimed is in a session's queue, written to its stream, or on its way back. A session's end moves the
  first, never the second: a worker may come back for it.
- The database decides everything else. What is kept here may be lost at any moment: the lease brings the job back.

What failures do
- A claim or a tick that fails: sessions stay up, it is tried again with a growing, jittered wait.
- A write to a stream that fails: that session ends, and what was never written to it is abandoned at once, the frame
  that was cut short included.
- A connection that is lost: what was written to it stays leased for the reconnect grace; if the worker has not come
  back by then, here or elsewhere, its leases end (`lost_workers`).
- A peer that does not read: nothing more is claimed for it once 4 MiB wait; silence ends it.
- A row that the database refuses: found by halving the flush, and answered alone.
- A flush whose fate is unknown: sent again. Submits then count as resent, outcomes are known by their epoch.
- A service that fails of a bug is logged, counted and restarted, and the instance is not ready meanwhile: half an
  instance must not look alive. A bug that concerns one demand, one flush or one row stops only that.
"""
