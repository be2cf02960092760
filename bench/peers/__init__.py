"""The same jobs through Headgate and through what users would pick instead, on the same machine in the same run.

- `catalog`: what is measured, with pinned versions, settings and promises; `peer` is what it says of each.
- `install`: every library in an environment of its own under build/peers.
- `services`: the PostgreSQL and the Redis they run on, and how to ask those what is left to do.
- `programs/`: one program per library, with the same roles (programs/kit.py); each runs in the library's environment.
- `processes`: those programs as processes, and their count of handled jobs.
- `lanes`: what is measured, alike for all.
- `results`: bench/peers.json, one entry per library, so that a run can be continued.
- `sweep`: other settings of each library, one run each: bench/peers-sweep.json.
- `standing`, `page`, `page_notes`, `report`: docs/benchmarks.md, from those two files alone.
"""
