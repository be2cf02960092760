"""The fault laboratory: real processes, a mixed load, faults on purpose, and a checker that reads what everyone noted.

    python -m tests.fault.lab --list                      the scenarios
    python -m tests.fault.lab                             all of them, and a table at the end
    python -m tests.fault.lab --only F1,F10               some of them
    python -m tests.fault.lab --long --only F13           for as long as the catalogue says (make faults LONG=1)
    python -m tests.fault.lab --seconds 60 --seed 1       random faults under a mixed load
    python -m tests.fault.lab --check FOLDER              judge a kept run once more

A run has four acts. `World` starts PostgreSQL, servers and workers, and `Load` keeps them busy. A scenario, or the
seeded `mix`, breaks things. `World.heal` ends every fault and `World.drain` waits until nothing is left to do: without
that, loss could not be distinguished from delay. Then the tables are dumped and `checker` judges the whole history.

Of several scenarios each runs in a process of its own, with its own deadline (`apart`). Faults that last minutes in the
catalogue (all servers down for 60 s, the database frozen for 20 s, the machine asleep for two minutes …) last seconds
by default, and their full time in the long form.

Every process appends to a file of its own (`history`), flushed line by line, so that a SIGKILL loses nothing that was
noted. The machine's monotonic clock orders the lines of all of them; its wall clock, which is PostgreSQL's as well,
stands beside it.
"""
