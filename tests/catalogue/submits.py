"""Rows 1-36: what a submit can get wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from headgate import RetryPolicy
from headgate.sdk.errors import PayloadError, SubmitConflict, SubmitRefused
from headgate.wire import batches_pb2, producer_pb2
from tests.catalogue.table import Ask, Case, Submit, World, new_job, submitting
from tests.support.wire import new_id

PB = producer_pb2
NAMING = ("topic", "1 to 200 of A-Z a-z 0-9 . _ : / -")
REFUSED = PB.SUBMIT_REFUSED
YEARS = ("run_at", "2000-01-01")


def _topic(row: int, name: str, topic: str, *says: str, code: str = "invalid_input") -> Case:
    return Case(
        row=row,
        name=name,
        code=code,
        says=says or NAMING,
        grpc=submitting(topic=topic),
        sdk=Submit(topic=topic),
        cli=("submit", topic),
    )


def _open_for(milliseconds: int) -> Ask:
    return lambda _: ("BatchService/OpenBatch", batches_pb2.OpenBatchRequest(expires_in_ms=milliseconds))


def _own_parent(_: World) -> tuple[str, PB.SubmitRequest]:
    job_id = new_id()
    return "ProducerService/Submit", PB.SubmitRequest(job=PB.NewJob(topic="mail", id=job_id, depends_on=[job_id]))


def _cycle(_: World) -> tuple[str, PB.SubmitBatchRequest]:
    one, two = new_id(), new_id()
    jobs = [PB.NewJob(topic="mail", id=a, depends_on=[b]) for a, b in ((one, two), (two, one))]
    return "ProducerService/SubmitBatch", PB.SubmitBatchRequest(jobs=jobs, atomic=True)


def _one_bad(_: World) -> tuple[str, PB.SubmitBatchRequest]:
    jobs = [PB.NewJob(topic="no topic" if place == 7 else "mail") for place in range(20)]
    return "ProducerService/SubmitBatch", PB.SubmitBatchRequest(jobs=jobs, atomic=True)


TOPICS = [
    _topic(1, "an empty topic", ""),
    _topic(2, "a topic of 256 characters", "x" * 256, "topic", "256 characters", "limit of 200", code="too_large"),
    _topic(3, "a control character in a topic", "a\x07b"),
    _topic(4, "a path in a topic", "../etc/passwd"),
    _topic(4, "an escape in a topic", "a%00b"),
    _topic(5, "a blank topic", " "),
    _topic(6, "a line break in a topic", "a\nb"),
    _topic(6, "a bidirectional override in a topic", "a\u202eb"),
    Case(row=1, name="a topic that is no text", says=NAMING, sdk=Submit(topic=5)),
    Case(row=3, name="a lone surrogate in a topic", says=NAMING, sdk=Submit(topic="a\ud800b")),
]
SIZES = [
    Case(
        row=7,
        name="a payload one byte too long",
        code="too_large",
        says=("payload", "1048577 bytes", "limit of 1048576", "reference"),
        grpc=submitting(payload=b"x" * 1_048_577),
        sdk=Submit(payload=b"x" * 1_048_577),
        cli=lambda world: ("submit", "mail", f"@{world.big}"),
    ),
]
ORDER = [
    *(
        Case(
            row=22,
            name=f"priority {value}",
            says=("priority", "-2147483648 to 2147483647"),
            sdk=Submit(options={"priority": value}),
            cli=("submit", "mail", f"--priority={value}"),
        )
        for value in (2**31, -(2**31) - 1)
    ),
    Case(row=23, name="priority 1.5", says=("priority", "1.5"), sdk=Submit(options={"priority": 1.5})),
    Case(
        row=24,
        name="a tier that is none",
        says=("priority", "bulk, normal, high, urgent"),
        sdk=Submit(options={"priority": "hihg"}),
        cli=("submit", "mail", "--priority", "hihg"),
    ),
    Case(row=24, name="a priority of signs", says=("priority",), cli=("submit", "mail", "--priority=+-1")),
    Case(row=24, name="a priority of other digits", says=("priority",), cli=("submit", "mail", "--priority=²")),
]
TIMES = [
    Case(
        row=25,
        name="due in year 1",
        says=YEARS,
        grpc=submitting(run_at_us=-62_135_596_800_000_000),
        sdk=Submit(options={"run_at": datetime(1, 1, 1, tzinfo=UTC)}),
        cli=("submit", "mail", "--at", "0001-01-01T00:00:00Z"),
    ),
    Case(
        row=26,
        name="due in year 9999",
        says=YEARS,
        grpc=submitting(run_at_us=253_402_300_799_000_000),
        sdk=Submit(options={"run_at": datetime(9999, 12, 31, tzinfo=UTC)}),
        cli=("submit", "mail", "--at", "9999-12-31T00:00:00Z"),
    ),
    new_job(26, "due past any calendar", ("run_at_us",), run_at_us=2**63 - 1),
    Case(
        row=27,
        name="a time without a zone",
        says=("time zone",),
        sdk=Submit(options={"run_at": datetime(2026, 1, 1)}),  # noqa: DTZ001 - the point of it
        cli=("submit", "mail", "--at", "2026-01-01T00:00:00"),
        cli_says=("--at", "time zone", "Z for UTC"),
    ),
    new_job(27, "both a delay and a time", ("run_at_us", "delay_ms"), delay_ms=5, run_at_us=5),
    new_job(27, "a delay of six years", ("delay", "1825d"), delay_ms=6 * 365 * 86_400_000),
    new_job(27, "a negative delay", ("delay_ms", "0 or more"), delay_ms=-1),
]
ATTEMPTS = [
    *(
        Case(
            row=28 if value < 1 else 29,
            name=f"max_attempts {value}",
            says=("max_attempts", "1 to 10000"),
            grpc=submitting(max_attempts=value) if value > 0 else None,  # 0 is the topic's own, and there is no sign
            sdk=Submit(options={"max_attempts": value}),
            cli=("submit", "mail", f"--max-attempts={value}"),
        )
        for value in (0, -1, 10**9)
    ),
    *(
        Case(
            row=30,
            name=f"a timeout of {value}",
            says=("timeout", "greater than 0"),
            sdk=Submit(options={"timeout": value}),
        )
        for value in (0, -1, float("nan"))
    ),
    *(
        Case(
            row=30,
            name=f"a batch open for {value} ms",
            says=(name,),
            grpc=_open_for(value),
        )
        for value, name in ((2**62, "expires_in_ms"), (-1, "expires_in_ms"), (1, "expires_in"), (10**14, "expires_in"))
    ),
    new_job(31, "a base of more than the cap", ("cap_ms",), retry=PB.RetryPolicy(base_ms=10, cap_ms=5)),
    new_job(31, "a cap of a hundred years", ("cap_ms", "2592000000"), retry=PB.RetryPolicy(cap_ms=2**40)),
    new_job(31, "a kind of backoff nobody knows", ("retry.kind", "QUADRATIC"), retry=PB.RetryPolicy(kind=99)),  # type: ignore[arg-type]
    new_job(31, "explicit without delays", ("delays_ms",), retry=PB.RetryPolicy(kind=PB.RetryPolicy.EXPLICIT)),
    Case(row=31, name="a policy that is none", says=("retry", "RetryPolicy"), sdk=Submit(options={"retry": "fast"})),
    Case(
        row=31,
        name="a topic's base of more than its cap",
        says=("cap_ms",),
        sdk=lambda hg, _: hg.admin.topics.set("mail", retry=RetryPolicy(base_ms=10, cap_ms=5)),
        cli=("topic", "set", "mail", "--retry", "fixed:10s:5s"),
    ),
    Case(
        row=31,
        name="a policy of the command line",
        says=("--retry", "KIND:BASE"),
        cli=("topic", "set", "m", "--retry=x"),
    ),
]
KEYS = [
    Case(
        row=32,
        name="an empty key",
        says=("key", "1 to 255 characters"),
        sdk=Submit(options={"key": ""}),
        cli=("submit", "mail", "--key", ""),
    ),
    Case(
        row=32,
        name="a key of 1 KiB",
        code="too_large",
        says=("key", "1024 characters", "255"),
        grpc=submitting(key="k" * 1024),
        sdk=Submit(options={"key": "k" * 1024}),
        cli=("submit", "mail", "--key", "k" * 1024),
    ),
    new_job(32, "a window of a millisecond", ("key_window", "1s to 365d"), key="k", key_window_ms=1),
    new_job(32, "a window without a key", ("key_window", "needs a key"), key_window_ms=5_000),
    Case(
        row=33,
        name="a key that was used with another body",
        code="conflict",
        grpc=submitting(key="once", payload=b"another"),
        receipt=PB.SUBMIT_CONFLICT,
        says=("submitted before with another body",),
        sdk=Submit(payload={"another": 1}, options={"key": "once"}),
        raises=SubmitConflict,
        sdk_says=("was used before, with another body, by job",),
        cli=("submit", "mail", '{"another": 1}', "--key", "once"),
        exits=4,
        cli_says=("was used before, with another body, by job",),
    ),
    new_job(33, "an id of all zeros", ("id",), id=b"\0" * 16),
    new_job(33, "an id of 5 bytes", ("id", "16 bytes"), id=b"short"),
    Case(
        row=33,
        name="an id that is none",
        says=("id", "UUID"),
        sdk=Submit(options={"id": "x"}),
        cli=("job", "get", "x"),
    ),
]
BATCHES = [
    Case(
        row=34,
        name="no jobs at all",
        says=("jobs", "at least one"),
        grpc=lambda _: ("ProducerService/SubmitBatch", PB.SubmitBatchRequest()),
    ),
    Case(
        row=34,
        name="10,001 jobs",
        code="too_large",
        says=("jobs", "10001 jobs is over the limit of 10000 jobs"),
        grpc=lambda _: ("ProducerService/SubmitBatch", PB.SubmitBatchRequest(jobs=[PB.NewJob(topic="mail")] * 10_001)),
    ),
    Case(row=34, name="one bad of 20, all or nothing", says=("jobs[7]", "nothing was submitted"), grpc=_one_bad),
    Case(
        row=34,
        name="a job that is refused by itself",
        says=NAMING,
        receipt=REFUSED,
        grpc=lambda _: ("ProducerService/SubmitBatch", PB.SubmitBatchRequest(jobs=[PB.NewJob(topic="no topic")])),
        sdk=lambda hg, _: hg.submit_many("no topic", [b""]),
    ),
    Case(
        row=34,
        name="one of many that cannot be sent",
        says=("payload",),
        sdk=lambda hg, _: hg.submit_many("mail", [b"", {1, 2}, object()]),
    ),
]
TAGS = [
    Case(
        row=35,
        name="100 tags",
        code="too_large",
        says=("tags", "100 tags is over the limit of 20"),
        grpc=submitting(tags=[str(n) for n in range(100)]),
        sdk=Submit(options={"tags": [str(n) for n in range(100)]}),
        cli=("submit", "mail", "--tags", ",".join(map(str, range(100)))),
    ),
    Case(
        row=35,
        name="an empty tag",
        says=("tags[1]", "1 to 100 characters"),
        grpc=submitting(tags=["a", ""]),
        sdk=Submit(options={"tags": ["a", ""]}),
        cli=("submit", "mail", "--tags", "a,"),
    ),
    Case(row=35, name="a tag that is no text", says=("tags[0]", "str"), sdk=Submit(options={"tags": [5]})),
    Case(row=35, name="tags that are one text", says=("tags", "at most 20"), sdk=Submit(options={"tags": "red"})),
    new_job(35, "a header's name", ("headers name", "1 to 100"), headers={"bad name": "x"}),
    new_job(35, "a header of 9,000 bytes", ("headers", "8192"), code="too_large", headers={"n": "x" * 9_000}),
    Case(
        row=35,
        name="an option nobody knows",
        says=("options", "has no prio", "priority"),
        sdk=Submit(options={"prio": 1}),
    ),
]
LINKS = [
    Case(
        row=36,
        name="a job that waits for itself",
        code="dependency_cycle",
        says=("cannot wait for itself",),
        grpc=_own_parent,
    ),
    Case(row=36, name="two jobs that wait for each other", code="dependency_cycle", says=("waits for",), grpc=_cycle),
    Case(
        row=36,
        name="a parent that is not there",
        code="not_found",
        says=("no parent job",),
        grpc=submitting(depends_on=[new_id()]),
        sdk=Submit(options={"depends_on": [UUID(bytes=new_id())]}),
        raises=SubmitRefused,
        cli=("submit", "mail", "--depends-on", str(UUID(bytes=new_id()))),
        exits=3,
    ),
    Case(
        row=36,
        name="a parent of another tenant",
        code="not_found",
        says=("no parent job",),
        grpc=lambda world: submitting(depends_on=[UUID(world.theirs).bytes])(world),
        cli=lambda world: ("submit", "mail", "--depends-on", world.theirs),
        exits=3,
    ),
    Case(
        row=36,
        name="a batch that is sealed",
        code="batch_sealed",
        says=("is sealed and takes no more jobs",),
        grpc=lambda world: submitting(batch=UUID(world.sealed_batch).bytes)(world),
        cli=lambda world: ("submit", "mail", "--batch", world.sealed_batch),
        exits=4,
    ),
    new_job(36, "needs of a kind nobody knows", ("needs", "succeeded, ended"), needs=7, depends_on=[new_id()]),
]
RING: list[object] = []
RING.append(RING)
PAYLOADS = [
    Case(
        row=82,
        name=f"a payload with {name}",
        says=(where,),
        sdk=Submit(payload=payload),
        raises=PayloadError,
    )
    for name, payload, where in (
        ("a set", {"a": {"b": [{1, 2}]}}, "payload.a.b[0]"),
        ("bytes inside", {"a": b"x"}, "payload.a"),
        ("a date", {"a": datetime(2026, 1, 1, tzinfo=UTC)}, "payload.a"),
        ("a number of 100 digits", {"a": 10**100}, "payload.a"),
        ("not a number", {"a": [float("nan")]}, "payload.a[0]"),
        ("an object", {"a": object()}, "a"),
        ("a circle", RING, "payload"),
        ("keys that are no texts", {"a": {(1, 2): 3}}, "a"),
    )
]
CASES: list[Case] = [*TOPICS, *SIZES, *ORDER, *TIMES, *ATTEMPTS, *KEYS, *BATCHES, *TAGS, *LINKS, *PAYLOADS]
