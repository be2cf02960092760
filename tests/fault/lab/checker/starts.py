"""What handlers did, as their own processes noted it: the part of I2 and I5 that a stored row cannot tell."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.fault.lab.checker.model import FAIL, Model, Violation
from tests.fault.lab.history import Event

_ACCEPTED = frozenset({"applied", "duplicate"})


def one_run_at_a_time(model: Model) -> Iterator[Violation]:
    """For I2: an epoch is started once, and no process runs a job twice at once."""
    begun: Counter[tuple[str, int]] = Counter()
    for start in model.starts:
        run = (start["job"], start["epoch"])
        begun[run] += 1
        if begun[run] == 2:
            who = sorted({one.proc for one in model.starts if (one["job"], one["epoch"]) == run})
            yield Violation(
                invariant="I2", text=f"job {run[0]}: epoch {run[1]} was started more than once, by {', '.join(who)}",
                at=start.t, job=run[0],
            )  # fmt: skip
    runs: defaultdict[str, dict[str, int]] = defaultdict(dict)  # by process: job -> epoch
    for event in model.events:
        open_runs = runs[event.proc]
        match event.kind:
            case "proc" if event["what"] == "start" and "name" not in event.data:  # its own note, not the laboratory's
                open_runs.clear()
            case "handler_start":
                job, epoch = event["job"], event["epoch"]
                if open_runs.get(job, epoch) != epoch:
                    yield Violation(
                        invariant="I2",
                        text=f"job {job}: {event.proc} began epoch {epoch} while its own run of epoch "
                        f"{open_runs[job]} had not ended",
                        at=event.t, job=job,
                    )  # fmt: skip
                open_runs[job] = epoch
            case "handler_end" if open_runs.get(event["job"]) == event["epoch"]:
                del open_runs[event["job"]]


def nothing_starts_after_its_end(model: Model) -> Iterator[Violation]:
    """For I5: no handler begins once the completion of its epoch, or of an earlier one, was acknowledged.

    Except by a redrive. A run of an *older* epoch may begin late, at a worker that was frozen: its result is refused.
    """
    starts_of: defaultdict[str, list[Event]] = defaultdict(list)
    for start in model.starts:
        starts_of[start["job"]].append(start)
    for job, receipts in model.receipts_of.items():
        redrives = [one for one in model.verbs_of.get(job, ()) if one.what == "redrive" and one.status != FAIL]
        for receipt in receipts:
            if receipt.code not in _ACCEPTED:
                continue
            for start in starts_of[job]:
                again = start["epoch"] == receipt.epoch and start.proc == receipt.proc
                later = start["epoch"] > receipt.epoch and receipt.kind == "completed" and not redrives
                if start.t > receipt.t and (again or later):
                    yield Violation(
                        invariant="I5",
                        text=f"job {job}: {start.proc} began epoch {start['epoch']} after the end of epoch "
                        f"{receipt.epoch} ({receipt.kind}) had been acknowledged",
                        at=start.t, job=job,
                    )  # fmt: skip
