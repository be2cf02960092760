"""The store: all SQL, and the only place that speaks to PostgreSQL.

What is where
- `migrations/NNNN_name.sql` and `functions/NAME_vN.sql` make the schema. A hot statement is a versioned PL/pgSQL
  function: one round trip, a new snapshot per inner statement, planner settings pinned by the function itself.
- `database`: the connections of an instance, a lane for each kind of work, and the names it knows.
- The hot path: `submit` (with `flush`, `submit_calls`, `submit_claim`, `new_ids`), `claim`, `settle`, `leases`, `tick`,
  `dependencies`, `notifications`; `dispatch_store` puts them together. They move parallel lists, and return only what
  is not as expected: no row for a created job, none for an applied completion.
- Administration: `admin`, `verbs`, `control`, `quiet`, `worker_stops`, `audit`, `topics`, `schedules`, `batches`,
  `bulk`.
- Reading: `reads`, `listing`, `matching`, `dead_letters`. Upkeep: `upkeep`, `partitions`, `retention`, `bulk_chunks`,
  `schedule_firing`, `restore_fence`. The edges: `connect` (with `array_types`), `lane`, `errors`, `preflight`, `roles`,
  `migrate`.

A module has functions that take a connection, and a class that fits a port of `control/` or `dispatch/`: it chooses the
lane and turns names into numbers. Where that is all, the class only lists the functions (`tenant_calls`).

Who owns which state
- The row decides, not what an instance remembers. A job is in `jobs` (live) or in `archive` (finished), never in both;
  it moves in the statement that settles it. Every change is guarded by state and epoch, on the row's newest version.
- The database's clock decides leases and due times: `headgate.clock_v1()`, one reading per flush.
- Names and policies are cached in the process for good: a number never changes its meaning.

What failures do
- Every verb is one transaction. An error means that nothing of it happened, except `OutcomeUnknown`: the connection
  broke while a write was on its way. Sending the same write again is always safe: submits are known by job id and
  key, outcomes and renewals by id and epoch.
- A row the database cannot take is found by halving the flush; its neighbours are written.
- Claims never wait for a row lock (SKIP LOCKED), and all others take locks in id order.

How the hot table is touched: read in claim order with a LIMIT, or by `key = ANY (array)`. It is never joined to a
set, and a state that some partial index has as its predicate never stands as a plain condition in a key look-up. A
queue's statistics are stale whenever it fills or drains, and the planner was seen to walk a whole partial index
instead of ten keys.
"""
