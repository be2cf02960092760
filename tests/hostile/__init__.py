"""`make hostile`: hostile clients beside a well-behaved neighbour of another tenant, with verdicts.

`attacks` and `http2` are what strangers and token holders do, each in a process of its own; `neighbour` is the tenant
that must not notice; `lane` runs them one after another against real servers and judges each.
"""
