"""Rows 67-71: URLs of webhooks that this server must not connect to, and endpoints that make no sense."""

from __future__ import annotations

from headgate.domain.errors import NotFound
from headgate.wire import webhooks_pb2 as pb
from tests.catalogue.table import Case
from tests.support.wire import new_id

NOBODYS = new_id()
_ID = NOBODYS.hex()


def _url(row: int, name: str, url: str, *says: str) -> Case:
    return Case(
        row=row,
        name=f"webhook: {name}",
        says=("url", *says),
        grpc=lambda _: (
            "WebhookService/Create",
            pb.CreateWebhookRequest(spec=pb.WebhookSpec(url=url, events=["job.dead"])),
        ),
        sdk=lambda hg, _: hg.admin.webhooks.create(url, ["job.dead"]),
        cli=("webhook", "create", url, "job.dead"),
    )


CASES: list[Case] = [
    _url(67, "loopback", "https://127.0.0.1/", "not a public address", "--webhook-allow"),
    _url(67, "loopback by name", "https://localhost/", "not a public address"),
    _url(67, "plain HTTP", "http://93.184.215.14/", "https://", "--webhook-http"),
    _url(68, "IPv4 mapped into IPv6", "https://[::ffff:10.0.0.1]/", "IPv4-mapped"),
    _url(69, "cloud metadata", "https://169.254.169.254/latest/meta-data/", "metadata"),
    _url(70, "a decimal address", "https://2130706433/", "usual form"),
    _url(70, "an octal address", "https://0177.0.0.1/", "usual form"),
    _url(70, "a user in the URL", "https://user@93.184.215.14/", "user name"),
    _url(70, "a file", "file:///etc/passwd", "https://"),
    _url(71, "a line break", "https://93.184.215.14/a\r\nx: y", "U+000D"),
    _url(71, "port 22", "https://93.184.215.14:22/", "port 22", "443"),
    Case(
        row=71,
        name="webhook: no such event",
        says=("events", "job.started", "job.completed"),
        grpc=lambda _: (
            "WebhookService/Create",
            pb.CreateWebhookRequest(spec=pb.WebhookSpec(url="https://93.184.215.14/", events=["job.started"])),
        ),
        sdk=lambda hg, _: hg.admin.webhooks.create("https://93.184.215.14/", ["job.started"]),
        cli=("webhook", "create", "https://93.184.215.14/", "job.started"),
    ),
    Case(
        row=71,
        name="webhook: not there",
        says=("no webhook",),
        code="not_found",
        grpc=lambda _: ("WebhookService/Get", pb.GetWebhookRequest(id=NOBODYS)),
        sdk=lambda hg, _: hg.admin.webhooks.get(_ID),
        raises=NotFound,
        cli=("webhook", "get", _ID),
        exits=3,
    ),
    Case(
        row=71,
        name="webhook: an id that is none",
        says=("id",),
        grpc=lambda _: ("WebhookService/Get", pb.GetWebhookRequest(id=b"short")),
        sdk=lambda hg, _: hg.admin.webhooks.get("first"),
        cli=("webhook", "get", "first"),
    ),
]
