"""The authorisation table: the scopes that each method requires, what it reaches, how large its requests may be.

The gRPC server looks a method up here before it reads anything of the request (api/grpc/guard.py). A method that is not
in the table cannot be served. Other transports apply the same rules to the same use cases.

Scopes and sizes are checked before the request is read. The tenant and topic of an object are known only when the
object is read, so the use cases check those; `tests/e2e/test_permissions.py` makes every call of the table against
objects of other tenants and other topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Final

from headgate.domain import limits
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.rate_limits import RateClass


class TenantRule(StrEnum):
    """Which tenants' data a method reaches. No request names a tenant: it is always the credential's."""

    NONE = "none"
    """No tenant's data. No token is required, so requests are not read at all."""
    OWN = "own"
    OWN_OR_ALL = "own or all"
    """The caller's tenant; all tenants with the scope `system`."""
    ALL = "all"
    """All tenants; requires the scope `system`."""


class TopicRule(StrEnum):
    """How a method treats a token that is limited to some topics."""

    NONE = "none"
    """The method concerns no topic."""
    NAMED = "named"
    """The request names topics: those that the token does not permit are refused."""
    OBJECT = "object"
    """The request names an object: one of another topic is not found."""
    FILTERED = "filtered"
    """The answer omits what belongs to other topics."""
    WHOLE_TENANT = "whole tenant"
    """The method reaches all topics of a tenant: such a token is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table."""

    scopes: tuple[Scope, ...]
    """One of them suffices; a refusal names the first. Empty: no token is required."""
    tenant: TenantRule
    topics: tuple[TopicRule, ...]
    max_bytes: int = limits.SMALL_REQUEST_MAX_BYTES
    """Maximum size of one message."""
    elements: Mapping[str, int] = field(default_factory=dict, hash=False)
    """By path of a repeated field: the maximum number of elements in each message."""
    changes: bool = True
    """Whether it changes what is stored: such calls are refused while the database is read-only."""
    rated: bool = True
    """Whether a rate limit counts each call. Submits count their jobs instead (control/submit.py). Heartbeats and
    outcomes are never refused: a job would be lost to its worker, or run again."""

    @property
    def rate_class(self) -> RateClass | None:
        """What a rate limit counts a call as; None: not at all."""
        return _RATE_CLASSES[self.scopes[0]] if self.rated and self.scopes else None

    def admit(self, caller: Identity) -> None:
        """Raise PermissionDenied unless the caller may use the method."""
        caller.require(*self.scopes)
        if caller.topics is not None and TopicRule.WHOLE_TENANT in self.topics:
            raise PermissionDenied(f"this reaches all topics, and the token of {caller.subject} permits only some")


_RATE_CLASSES: Final = {
    Scope.SUBMIT: RateClass.SUBMIT,
    Scope.WORK: RateClass.WORK,
    Scope.READ: RateClass.READ,
    Scope.OPERATE: RateClass.OPERATE,
    Scope.ADMIN: RateClass.OPERATE,
    Scope.SYSTEM: RateClass.OPERATE,
}
_NEW_JOB: Final = {
    "headers": limits.HEADERS_MAX,
    "tags": limits.TAGS_MAX,
    "depends_on": limits.PARENTS_MAX,
}


def _within(path: str, most: int | None = None) -> dict[str, int]:
    """The counts of a new job at a path; `most`: the path is repeated."""
    own = {} if most is None else {path: most}
    return own | {f"{path}.{name}": count for name, count in _NEW_JOB.items()}


def _of(service: str, **rules: Rule) -> dict[str, Rule]:
    return {f"/{service}/{method}": rule for method, rule in rules.items()}


def _own(
    scope: Scope,
    *topics: TopicRule,
    max_bytes: int = limits.SMALL_REQUEST_MAX_BYTES,
    elements: Mapping[str, int] | None = None,
    changes: bool = True,
    rated: bool = True,
) -> Rule:
    """A method that concerns the tenant of its caller."""
    return Rule(
        scopes=(scope,),
        tenant=TenantRule.OWN,
        topics=topics,
        max_bytes=max_bytes,
        elements=elements or {},
        changes=changes,
        rated=rated,
    )


_read = partial(_own, Scope.READ, changes=False)
_operate = partial(_own, Scope.OPERATE)
_submit = partial(_own, Scope.SUBMIT)
_work = partial(_own, Scope.WORK)


def _manage_keys(*, changes: bool = True) -> Rule:
    return Rule(
        scopes=(Scope.ADMIN, Scope.SYSTEM),
        tenant=TenantRule.OWN_OR_ALL,
        topics=(TopicRule.WHOLE_TENANT,),
        changes=changes,
    )


def _of_all_tenants(*, changes: bool = True) -> Rule:
    return Rule(scopes=(Scope.SYSTEM,), tenant=TenantRule.ALL, topics=(TopicRule.WHOLE_TENANT,), changes=changes)


def _read_own_or_all(*topics: TopicRule) -> Rule:
    return Rule(scopes=(Scope.READ, Scope.SYSTEM), tenant=TenantRule.OWN_OR_ALL, topics=topics, changes=False)


_NAMED, _OBJECT, _FILTERED = TopicRule.NAMED, TopicRule.OBJECT, TopicRule.FILTERED
_WHOLE = TopicRule.WHOLE_TENANT
_OPEN: Final = Rule(scopes=(), tenant=TenantRule.NONE, topics=(TopicRule.NONE,), changes=False)

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    _of(
        "headgate.v1.ProducerService",
        Produce=_submit(
            _NAMED,
            _OBJECT,  # parents and the batch of a job
            max_bytes=limits.MESSAGE_MAX_BYTES,
            elements={
                **_within("jobs", limits.SUBMIT_BATCH_MAX),
                **{f"plain.{name}": limits.LIST_MAX for name in ("ids", "payloads", "priorities", "unset_priorities")},
            },
            rated=False,
        ),
        Submit=_submit(_NAMED, _OBJECT, max_bytes=limits.JOB_REQUEST_MAX_BYTES, elements=_within("job"), rated=False),
        SubmitBatch=_submit(
            _NAMED,
            _OBJECT,
            max_bytes=limits.MESSAGE_MAX_BYTES,
            elements=_within("jobs", limits.SUBMIT_BATCH_MAX),
            rated=False,
        ),
        GetJob=_read(_OBJECT),
        WaitResult=_read(_OBJECT),
    )
    | _of(
        "headgate.v1.WorkerService",
        Work=_work(
            _NAMED,
            _OBJECT,
            max_bytes=limits.MESSAGE_MAX_BYTES,
            elements={
                "outcomes.others": limits.SETTLE_FLUSH_MAX_ROWS,
                "beat.progress": limits.PROGRESS_MAX_JOBS,
                "beat.extensions": limits.PROGRESS_MAX_JOBS,
                "logs": limits.LOGS_MAX_JOBS,
                "logs.lines": limits.LOGS_MAX_LINES,
            },
        ),
        StreamJobs=_work(_NAMED, max_bytes=limits.TOPICS_REQUEST_MAX_BYTES),
        Heartbeat=_work(
            _OBJECT,
            max_bytes=limits.MESSAGE_MAX_BYTES,
            elements={
                "progress": limits.PROGRESS_MAX_JOBS,
                "logs": limits.LOGS_MAX_JOBS,
                "logs.lines": limits.LOGS_MAX_LINES,
            },
            rated=False,
        ),
        ReportOutcome=_work(
            _OBJECT,
            max_bytes=limits.MESSAGE_MAX_BYTES,
            elements={"outcomes": limits.SETTLE_FLUSH_MAX_ROWS},
            rated=False,
        ),
        Claim=_work(_NAMED, max_bytes=limits.TOPICS_REQUEST_MAX_BYTES),
    )
    | _of(
        "headgate.v1.BatchService",
        OpenBatch=_submit(_NAMED, max_bytes=limits.JOB_REQUEST_MAX_BYTES, elements=_within("on_done")),
        SealBatch=_submit(_OBJECT),
        GetBatch=_read(_OBJECT),
        ListBatches=_read(_FILTERED),
    )
    | _of(
        "headgate.v1.AdminService",
        Pause=Rule(scopes=(Scope.OPERATE, Scope.SYSTEM), tenant=TenantRule.OWN_OR_ALL, topics=(_NAMED,)),
        Resume=Rule(scopes=(Scope.OPERATE, Scope.SYSTEM), tenant=TenantRule.OWN_OR_ALL, topics=(_NAMED,)),
        Status=_read_own_or_all(_FILTERED),
        CancelJobs=_operate(_OBJECT),
        RedriveJobs=_operate(_OBJECT, max_bytes=limits.JOB_REQUEST_MAX_BYTES),
        DiscardJobs=_operate(_OBJECT),
        ReprioritiseJobs=_operate(_OBJECT),
        MoveJobs=_operate(_NAMED, _OBJECT),
        ListWorkers=_read(_FILTERED),
        QuietWorker=_operate(TopicRule.WHOLE_TENANT),
        StopWorker=_operate(TopicRule.WHOLE_TENANT),
        ResumeWorker=_operate(TopicRule.WHOLE_TENANT),
        ListAudit=_read_own_or_all(_WHOLE),
        FindIds=_read(_OBJECT),
        ListJobLogs=_read(_OBJECT),
        SetRetention=_of_all_tenants(),
        GetSystem=_of_all_tenants(changes=False),
        RunRetention=_of_all_tenants(),
    )
    | _of(
        "headgate.v1.BulkService",
        ListJobs=_read(_NAMED, _FILTERED),
        CountJobs=_read(_NAMED, _FILTERED),
        ListDeadGroups=_read(_NAMED, _FILTERED),
        PreviewBulk=_read(_NAMED, _FILTERED),
        StartBulk=_operate(_NAMED, _FILTERED),
        GetBulk=_read(_OBJECT),
        ListBulk=_read(_FILTERED),
        CancelBulk=_operate(_OBJECT),
    )
    | _of(
        "headgate.v1.ScheduleService",
        Put=_operate(
            _NAMED,
            _OBJECT,
            max_bytes=limits.JOB_REQUEST_MAX_BYTES,
            elements={"spec.headers": limits.HEADERS_MAX, "spec.tags": limits.TAGS_MAX},
        ),
        Get=_read(_OBJECT),
        List=_read(_FILTERED),
        Delete=_operate(_OBJECT),
        Pause=_operate(_OBJECT),
        Resume=_operate(_OBJECT),
        Trigger=_operate(_OBJECT),
        Next=_read(_OBJECT),
        Jobs=_read(_OBJECT),
    )
    | _of("headgate.v1.StatsService", GetStats=_read(_NAMED, _FILTERED), ListFailing=_read(_NAMED, _FILTERED))
    | _of(
        "headgate.v1.TopicService",
        ListTopics=_read(_FILTERED),
        GetTopic=_read(_NAMED),
        SetTopic=_operate(_NAMED, max_bytes=limits.TOPIC_REQUEST_MAX_BYTES),
        ApplyTopic=_operate(_NAMED, max_bytes=limits.TOPIC_REQUEST_MAX_BYTES),
        ListTopicVersions=_read(_NAMED),
        ReleaseTopic=_operate(_NAMED),
        # A worker decides by its handlers what becomes of the jobs of its topics: how often they are tried, too.
        DeclareTopics=_work(
            _NAMED, max_bytes=limits.TOPICS_REQUEST_MAX_BYTES, elements={"topics": limits.DECLARATIONS_MAX}
        ),
    )
    | _of(
        "headgate.v1.WebhookService",
        # An endpoint gets events of all topics that match its patterns, and sends them out of the system.
        Create=_operate(_WHOLE),
        Get=_read(_WHOLE),
        List=_read(_WHOLE),
        Update=_operate(_WHOLE),
        Delete=_operate(_WHOLE),
        RotateSecret=_operate(_WHOLE),
        Test=_operate(_WHOLE),
        ListDeliveries=_read(_WHOLE),
        GetDelivery=_read(_WHOLE),
        Resend=_operate(_WHOLE),
    )
    | _of(
        "headgate.v1.EventService",
        ReadEvents=_read(_NAMED, _FILTERED),
    )
    | _of(
        "headgate.v1.KeyService",
        CreateKey=_manage_keys(),
        GetKey=_manage_keys(changes=False),
        ListKeys=_manage_keys(changes=False),
        RotateKey=_manage_keys(),
        RevokeKey=_manage_keys(),
        ListSessions=_manage_keys(changes=False),
        RevokeSession=_manage_keys(),
    )
    | _of(
        "headgate.v1.TenantService",
        GetTenant=_read_own_or_all(_WHOLE),
        # A tenant must not raise its own quotas, nor know which others there are.
        ListTenants=_of_all_tenants(changes=False),
        SetTenant=_of_all_tenants(),
        GetTenantDefaults=_of_all_tenants(changes=False),
        SetTenantDefaults=_of_all_tenants(),
    )
    | _of("grpc.health.v1.Health", Check=_OPEN, Watch=_OPEN)
)
"""By the full name of a gRPC method."""

REFLECTION: Final[Mapping[str, Rule]] = MappingProxyType(
    _of("grpc.reflection.v1alpha.ServerReflection", ServerReflectionInfo=_read(TopicRule.NONE))
)
"""Served in dev mode only."""
