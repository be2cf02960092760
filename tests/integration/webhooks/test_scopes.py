"""Who may have results sent, only a caller that may read them; and to which URLs, also after a change."""

from __future__ import annotations

import os

import pytest

from headgate.control.webhooks import Webhooks
from headgate.domain.egress import EgressRules
from headgate.domain.errors import InvalidInput
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.webhooks import WebhookSpec
from headgate.ops.webhook_http import WebhookHttp
from headgate.store.database import Database
from headgate.store.webhooks import WebhookStore
from tests.support.queue import new_id
from tests.support.webhooks import URL, Hooks


async def _permitted(url: str) -> None:
    """Every URL is."""


async def test_results_are_sent_only_for_a_caller_that_may_read_them(hooks: Hooks, instance_database: Database) -> None:
    use_case = Webhooks(
        WebhookStore(instance_database), check_url=_permitted, make_id=new_id, entropy=os.urandom, wake=lambda: None
    )
    await hooks.tenant_no()
    blind = Identity(tenant="acme", subject="ops", scopes=frozenset({Scope.OPERATE}))
    reader = Identity(tenant="acme", subject="ana", scopes=frozenset({Scope.OPERATE, Scope.READ}))
    spec = WebhookSpec(url=URL, events=("job.completed",), include_result=True)
    with pytest.raises(PermissionDenied, match='"read"'):
        await use_case.create(blind, spec)
    with_results, _ = await use_case.create(reader, spec)
    without, _ = await use_case.create(blind, WebhookSpec(url=URL, events=("job.completed",)))
    with pytest.raises(PermissionDenied, match='"read"'):
        await use_case.update(blind, without.id, {"include_result": True})
    with pytest.raises(PermissionDenied, match='"read"'):
        await use_case.update(blind, with_results.id, {"url": "http://127.0.0.1:9/elsewhere"})
    assert (await use_case.update(blind, without.id, {"description": "x"})).spec.description == "x"
    assert not (await use_case.update(blind, with_results.id, {"include_result": False})).spec.include_result


async def test_a_url_is_checked_when_an_endpoint_is_created_and_when_it_is_changed(
    hooks: Hooks, instance_database: Database
) -> None:
    use_case = Webhooks(
        WebhookStore(instance_database),
        check_url=WebhookHttp(EgressRules()).check,
        make_id=new_id,
        entropy=os.urandom,
        wake=lambda: None,
    )
    await hooks.tenant_no()
    caller = Identity(tenant="acme", subject="ana", scopes=frozenset({Scope.OPERATE, Scope.READ}))
    made, _ = await use_case.create(caller, WebhookSpec(url="https://93.184.215.14/", events=("job.dead",)))
    for url, words in (
        ("https://169.254.169.254/", "not a public address"),
        ("https://[::ffff:10.0.0.1]/", "not a public address"),
        ("http://93.184.215.14/", "must begin with https://"),
    ):
        with pytest.raises(InvalidInput, match=words):
            await use_case.create(caller, WebhookSpec(url=url, events=("job.dead",)))
        with pytest.raises(InvalidInput, match=words):
            await use_case.update(caller, made.id, {"url": url})
    assert (await use_case.get(caller, made.id)).spec.url == "https://93.184.215.14/"
