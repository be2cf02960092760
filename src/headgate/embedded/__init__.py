"""A PostgreSQL that needs no setup: found, made, started, shared and stopped by us; the server itself is the real one.

Theory
======
For development, tests and single-host use. `HEADGATE_DATABASE_URL` replaces it altogether (`database_url`).

The actors:

- **users**: processes that called `start` on one data folder. Each holds a shared lock on `users.lock`.
- **the keeper**: one small process per server, in a session of its own. Parent of the server, holder of
  `keeper.lock`. It waits for `users.lock` exclusively, which it gets when the last user is gone.
- **the server**: an unmodified `postgres`, with fsync on, on a socket in a private folder.

A lock is a flock: the kernel drops it when its holder ends, however it ends. So "is anyone there?" never depends on
code that a SIGKILL would have skipped. All deciding (init, launch, join, stop) is done under `start.lock`, one
process at a time.

What each failure does:

- *a user is killed*: its share of `users.lock` is dropped. If it was the last, the keeper stops the server (fast).
- *the server is killed*: the keeper sees its child exit, clears the socket folder and leaves. The next `start`
  (or `Cluster.restart`) recovers; PostgreSQL's own checks of shared memory stay in force, we wait and retry on them.
- *the keeper is killed*: the server runs on; the next `start` finds it and gives it a new keeper. With no next start
  it runs on without users, which is the one case that outlives its owner.
- *the machine stops*: SIGTERM to the keeper stops the server; without one, the next start recovers from the log.
- *init is killed*: it worked in a draft folder; the next start throws the draft away.
- *two first starts at once*: the second waits at `start.lock`, then joins.
- *a user arrives while the keeper is stopping*: the keeper holds `users.lock` until the server is gone; the newcomer
  waits, then launches.
- *the folder is used from another container*: pids do not match there, but the flock does: `start` refuses.

As root the server runs under an existing unprivileged account, see `privileges`; folders it may not pass are handed to
it open (`keeper.data_argument`), and binaries it may not read are copied to a cache (`privileges.reachable_binaries`).
"""

from headgate.embedded.binaries import Binaries, find_binaries
from headgate.embedded.cluster import Cluster, start
from headgate.embedded.launch import Mode
from headgate.embedded.locations import database_url, default_data_dir

__all__ = ["Binaries", "Cluster", "Mode", "database_url", "default_data_dir", "find_binaries", "start"]
