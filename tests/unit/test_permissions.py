"""The authorisation table: complete, and without contradictions."""

from __future__ import annotations

from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from headgate.api.grpc.shapes import Shape
from headgate.control.permissions import REFLECTION, RULES, Rule, TenantRule, TopicRule
from headgate.domain import limits
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.topic_sets import TopicSet
from tests.support.wire import SERVICE_FILES

ALL = {**RULES, **REFLECTION}


def described() -> dict[str, Any]:
    """Every method of the protocols that this server speaks, by its full name."""
    return {
        f"/{service.full_name}/{method.name}": method
        for file in (*SERVICE_FILES, health_pb2, reflection_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.name != "List" or not service.full_name.startswith("grpc.health")  # of a newer protocol, not served
    }


def identity(*scopes: Scope, topics: TopicSet | None = None, tenant: str = "acme") -> Identity:
    return Identity(tenant=tenant, subject="t", scopes=frozenset(scopes), topics=topics)


def test_every_method_has_a_rule_and_every_rule_a_method() -> None:
    assert set(ALL) == set(described())


READING = ("Get", "List", "Find", "Count", "Preview", "Wait", "Read", "Status", "Next", "Jobs", "Check", "Watch")


@pytest.mark.parametrize("path", sorted(RULES))
def test_what_changes_something_is_what_is_not_named_as_a_read(path: str) -> None:
    assert RULES[path].changes != path.rpartition("/")[2].startswith(READING)


@pytest.mark.parametrize("path", sorted(ALL))
def test_what_reaches_all_tenants_needs_the_scope_system_and_nothing_else_has_it(path: str) -> None:
    rule = ALL[path]
    assert (Scope.SYSTEM in rule.scopes) == (rule.tenant in (TenantRule.ALL, TenantRule.OWN_OR_ALL))
    assert (not rule.scopes) == (rule.tenant is TenantRule.NONE and path.startswith("/grpc.health"))
    assert rule.topics
    assert (Scope.ADMIN in rule.scopes) == path.startswith("/headgate.v1.KeyService/"), (
        "who has a key must not make others"
    )


@pytest.mark.parametrize("path", sorted(ALL))
def test_sizes_and_counts_name_fields_of_the_request(path: str) -> None:
    rule = ALL[path]
    assert limits.COUNTED_FROM_BYTES < rule.max_bytes <= limits.MESSAGE_MAX_BYTES
    if rule.elements:
        Shape.of(described()[path].input_type, rule.elements)


@pytest.mark.parametrize("path", sorted(ALL))
def test_every_list_of_messages_in_a_request_is_counted(path: str) -> None:
    """One that is not would cost a hundred times its size: as would a message within another that can be large."""
    rule, missing = ALL[path], []

    def look(descriptor: Any, prefix: str, seen: tuple[str, ...]) -> None:
        for field in descriptor.fields:
            where = f"{prefix}{field.name}"
            if field.message_type is None or field.message_type.full_name in seen:
                continue
            if field.is_repeated and where not in rule.elements:
                missing.append(where)
            look(field.message_type, f"{where}.", (*seen, field.message_type.full_name))

    request = described()[path].input_type
    if rule.max_bytes > limits.SMALL_REQUEST_MAX_BYTES:
        look(request, "", (request.full_name,))
    assert not missing


def test_admin_does_everything_in_its_tenant_and_nothing_beyond() -> None:
    for path, rule in RULES.items():
        if rule.scopes == (Scope.SYSTEM,):
            with pytest.raises(PermissionDenied, match='"system"'):
                rule.admit(identity(Scope.ADMIN))
        elif rule.scopes:
            rule.admit(identity(Scope.ADMIN))
            if Scope.SYSTEM not in rule.scopes:
                with pytest.raises(PermissionDenied):
                    rule.admit(identity(Scope.SYSTEM, tenant=""))
        assert path


def test_a_token_for_some_topics_is_refused_what_reaches_all_of_them() -> None:
    rule = Rule(scopes=(Scope.READ,), tenant=TenantRule.OWN, topics=(TopicRule.WHOLE_TENANT,))
    rule.admit(identity(Scope.READ))
    with pytest.raises(PermissionDenied, match="reaches all topics"):
        rule.admit(identity(Scope.READ, topics=TopicSet.of("mail")))
