"""What a run should have met at least sometimes: without these, its green says little."""

from __future__ import annotations

from tests.fault.lab.checker.model import DEAD, Model


def sometimes(model: Model) -> dict[str, int]:
    """How often each was seen. A night's runs together must have seen all of them."""
    codes = [receipt.code for receipt in model.receipts]
    instances: dict[str, set[str]] = {}
    for event in model.of_kind["hello_ack"]:
        instances.setdefault(event.proc, set()).add(event["instance"])
    covers = [
        event for event in model.of_kind["final_fired"] if event["covers_from"] not in (None, event["occurrence"])
    ]
    found = {
        "stale_result": codes.count("stale"),
        "duplicate_result": codes.count("duplicate"),
        "ambiguous_submit": sum(one.what.startswith("submit") and one.status == "info" for one in model.operations),
        "ambiguous_call": sum(not one.what.startswith("submit") and one.status == "info" for one in model.operations),
        "keyed_repeat": sum(one.status == "ok" and one.answer.get("created") is False for one in model.asked("submit")),
        "instance_change": sum(len(seen) > 1 for seen in instances.values()),
        "reopened_stream": sum(event.get("resumed", False) for event in model.of_kind["hello"]),
        "lease_expired": sum(fact.kind == 3 for fact in model.facts),
        "handed_back": sum(fact.kind == 4 for fact in model.facts),
        "lease_lost": len(model.of_kind["lost"]) + sum(bool(event["lost"]) for event in model.of_kind["hello_ack"]),
        "dead_letter": sum(row.state == DEAD for row in model.rows),
        "redriven": sum(fact.kind == 8 for fact in model.facts),
        "cancelled_running": len(model.of_kind["cancel"]),
        "coalesced_fire": len(covers),
        "paused": sum(one.what == "pause" and one.status == "ok" for one in model.operations),
    }
    for event in model.of_kind["sometimes"]:
        found[event["what"]] = found.get(event["what"], 0) + 1
    return found
