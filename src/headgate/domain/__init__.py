"""The rules of Headgate as values and pure functions: no clock, no I/O, no randomness of their own.

What lives here, and who leans on it:

- `states`, `outcomes`, `lifecycle`: the life of one job. `lifecycle` is the model; the SQL functions in `store/` carry
  the same rules out for thousands of rows at a time, and a property test drives both with the same steps and compares.
  So the arithmetic (`backoff`, `rank`) is whole numbers only, and written down so that SQL can repeat it bit for bit.
- `limits`, `validation`: every limit once, and the checks beside it. What passes here is accepted by the database:
  flushes carry many callers' rows, and one bad row found only by PostgreSQL would fail its neighbours.
- `ids`: job ids sort by time and are chosen before the first send, so a repeated submit is the same job.
- `errors`: one tree; every `code` keeps its meaning forever.

`now` and entropy are arguments. That makes each rule a table a test can walk through, and leaves the decision whose
clock counts (the database's) to the layer that can ask it.
"""
