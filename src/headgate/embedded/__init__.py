"""An embedded PostgreSQL: finds the binaries, creates the data folder, starts, shares and stops an unmodified server.

Theory
======
For development, tests and single-host use. `HEADGATE_DATABASE_URL` replaces it (`database_url`).

The actors:

- **users**: processes that called `start` on one data folder. Each holds a shared lock on `users.lock`.
- **the guardian**: one small process per server, in its own session. It is the server's parent and holds
  `guardian.lock`. It waits for an exclusive lock on `users.lock`, which it gets when the last user has ended.
- **the server**: an unmodified `postgres` with fsync on, on a socket in a private folder.

Every lock is a flock: the kernel releases it when its holder ends, even after SIGKILL. So whether a user is alive never
depends on cleanup code. Every decision (init, launch, join, stop) is made under `start.lock`, by one process at a time.

What each failure does:

- *a user is killed*: its share of `users.lock` is released. After the last user, the guardian stops the server (fast).
- *the server is killed*: the guardian sees its child exit, clears the socket folder and exits. The next `start` (or
  `Cluster.restart`) runs crash recovery; PostgreSQL's own shared-memory checks stay in force, `start` retries.
- *the guardian is killed*: the server keeps running; the next `start` gives it a new guardian. Without a next start it
  keeps running without users. This is the only case in which a server outlives its users.
- *the machine stops*: SIGTERM to the guardian stops the server; without it, the next start runs crash recovery.
- *init is killed*: it worked in a draft folder; the next start removes the draft.
- *two first starts at once*: the second waits for `start.lock`, then joins.
- *a user arrives while the guardian stops the server*: the guardian holds `users.lock` until the server has ended; the
  new user waits, then launches.
- *the folder is used from another container*: pids do not match there, but the flock does: `start` refuses.

As root, the server runs under an existing unprivileged account, see `privileges`. A folder it cannot traverse is
passed as an open descriptor (`guardian.data_argument`); binaries it cannot read are copied to a cache
(`privileges.reachable_binaries`).
"""

from headgate.embedded.binaries import Binaries, find_binaries
from headgate.embedded.cluster import Cluster, is_created, start
from headgate.embedded.launch import Mode
from headgate.embedded.locations import database_url, default_data_dir, whole_path
from headgate.embedded.reservation import Reservation, reserved

__all__ = [
    "Binaries",
    "Cluster",
    "Mode",
    "Reservation",
    "database_url",
    "default_data_dir",
    "find_binaries",
    "is_created",
    "reserved",
    "start",
    "whole_path",
]
