"""The fault laboratory: real processes, a mixed load, faults on purpose, and a checker that reads what everybody noted.

    python -m tests.fault.lab --list                      the scenarios
    python -m tests.fault.lab --only F1,F10               some of them
    python -m tests.fault.lab --seconds 60 --seed 1       random faults under a mixed load
    python -m tests.fault.lab --check FOLDER              judge a kept run once more

A run has four acts. `World` starts PostgreSQL, servers and workers, and `Load` keeps them busy. A scenario, or the
seeded `mix`, breaks things. `World.heal` ends every fault and `World.drain` waits until nothing is left to do: without
that, loss could not be told from delay. Then the tables are dumped and `checker` judges the whole history.

Every process appends to a file of its own (`history`), flushed line by line, so that a SIGKILL loses nothing that was
noted. The machine's monotonic clock orders the lines of all of them; its wall clock, which is PostgreSQL's as well,
stands beside it.
"""
