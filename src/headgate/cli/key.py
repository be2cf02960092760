"""`headgate key …`: API keys. The first one is created with `--database-url`, without a server."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.confirming import confirm_on_terminal
from headgate.cli.connection import with_client
from headgate.cli.lists import show_list
from headgate.cli.options import DEFAULT_SERVER, LISTING, Listing, Output, Reason, Server, YesOnTerminal
from headgate.cli.output import Columns, details, iso, print_one
from headgate.domain.api_keys import KeyView, NewKey, check_scopes, is_key_id
from headgate.domain.errors import InvalidInput, NotFound
from headgate.domain.rate_limits import parse_rates
from headgate.domain.topic_sets import check_topic_patterns
from headgate.sdk import Headgate
from headgate.sdk.admin import KeyInfo

key = App(name="key", help="Create, list, rotate and revoke API keys.")
KeyName = Annotated[str, Parameter(help="Key id such as hg_7k3mz9ab, or the name of the key.")]
KEYS: Final[Columns[KeyInfo]] = {
    "KEY": lambda one: f"hg_{one.id}",
    "NAME": lambda one: one.name,
    "TENANT": lambda one: one.tenant or None,
    "STATE": lambda one: one.state,
    "SCOPES": lambda one: ", ".join(one.scopes),
    "TOPICS": lambda one: "all" if one.topics is None else ", ".join(one.topics),
    "EXPIRES": lambda one: one.expires,
    "LAST USED": lambda one: one.last_used,
}
SHOWN_ONCE: Final = "This key is shown once, and is not stored. Pass it to clients as HEADGATE_TOKEN."


@key.command(name="create")
def create_command(
    name: Annotated[str, Parameter(help="Name of the key: the person or program that has it.")],
    *,
    scopes: Annotated[
        str, Parameter(help="Scopes, separated by commas: submit, work, read, operate, admin; or system alone.")
    ],
    topics: Annotated[
        str, Parameter(help="Topics, separated by commas; patterns such as orders.* are permitted. Default: all.")
    ] = "",
    tenant: Annotated[
        str, Parameter(help="Tenant of the key. Default: that of the token; with a database, it must be given.")
    ] = "",
    expires_in: Annotated[str, Parameter(help="Life of the key: 12h, 90d. Default: it does not expire.")] = "",
    rates: Annotated[
        str, Parameter(help="Rate limits by class, separated by commas: submit=100/1s:200,read=10/1s.")
    ] = "",
    database_url: Annotated[
        str | None, Parameter(help="Create the key in this database, without a server: for the first key.")
    ] = None,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Create an API key and print it once. The token needs the scope admin (or system, for other tenants)."""
    life = values.duration(expires_in, field="--expires-in") if expires_in else None
    limits = parse_rates(rates, field="--rates")
    if database_url is not None:
        new = NewKey(
            name=name,
            tenant=tenant,
            scopes=check_scopes(_names(scopes), field="--scopes"),
            topics=check_topic_patterns(_names(topics), field="--topics") if topics else None,
            expires_in=life,
            rates=limits,
        )
        info, text = asyncio.run(_created(new, database_url))
    else:
        info, text = with_client(
            server,
            lambda hg: hg.admin.keys.create(
                name,
                scopes=_names(scopes),
                topics=_names(topics) if topics else None,
                expires_in=life,
                rates=limits.texts() if limits else None,
                tenant=tenant,
            ),
        )
    _report(info, text, output)


@key.command(name="list")
def list_command(
    *,
    revoked: Annotated[bool, Parameter(help="Revoked keys as well.")] = False,
    listing: Listing = LISTING,
) -> None:
    """List API keys, without their secrets. The last use is exact to about a minute."""

    show_list(
        listing.shown,
        lambda hg: hg.admin.keys.list(revoked=revoked),
        KEYS,
        name=lambda one: f"hg_{one.id}",
        empty="no keys",
        part=listing.part,
        limit=listing.limit,
    )


@key.command(name="rotate")
def rotate_command(
    key_name: KeyName,
    *,
    overlap: Annotated[str, Parameter(help="How long the old secret stays valid: 1h, 7d.")] = "24h",
    now: Annotated[bool, Parameter(help="End the old secret at once, and what is open with it.")] = False,
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Give a key a new secret and print it once. The old one stays valid for the overlap."""
    span = timedelta(0) if now else values.duration(overlap, field="--overlap")

    async def act(hg: Headgate) -> tuple[KeyInfo, str]:
        return await hg.admin.keys.rotate(await _id_of(hg, key_name), overlap=span, reason=reason)

    info, text = with_client(server, act)
    _report(info, text, output)


@key.command(name="revoke")
def revoke_command(
    key_name: KeyName,
    *,
    reason: Reason = "",
    yes: YesOnTerminal = False,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """End a key. What is open with it ends within five seconds, on every server."""
    confirm_on_terminal(lambda: [f"The key {key_name} is revoked; it cannot be made valid again."], output, yes=yes)

    async def act(hg: Headgate) -> KeyInfo:
        return await hg.admin.keys.revoke(await _id_of(hg, key_name), reason=reason)

    info = with_client(server, act)
    print_one(info, output, lambda: [f"key hg_{info.id} ({info.name}) is revoked"], name=f"hg_{info.id}")


async def _id_of(hg: Headgate, given: str) -> str:
    """The id of a key that is named by its id or by its name."""
    if is_key_id(given):
        return given
    found = [one.id for one in await hg.admin.keys.list() if one.name == given]
    if not found:
        raise NotFound("key", given)
    if len(found) > 1:  # of several tenants
        raise InvalidInput("key", f"{len(found)} keys have this name", hint="give the id instead")
    return found[0]


async def _created(new: NewKey, url: str) -> tuple[KeyInfo, str]:
    from headgate.cli.database import chosen_database, connected
    from headgate.cli.restore_fence import operating_user
    from headgate.store.keys import create
    from headgate.store.migrate import check_schema
    from headgate.store.names import Names

    async with (
        chosen_database(url, data=None) as database,
        connected(database, command="key") as db,
    ):
        await check_schema(db)
        tenant_no = await Names().tenant(db, new.tenant) if new.tenant else 0
        view, text = await create(db, tenant_no, new, actor=f"{operating_user()} (database)")
    return _info(view), text


def _info(view: KeyView) -> KeyInfo:
    return KeyInfo(
        id=view.id,
        tenant=view.tenant,
        name=view.name,
        scopes=view.scopes,
        topics=view.topics,
        rates=view.rates,
        state=view.state,
        created=view.created_at,
        created_by=view.created_by,
        expires=view.expires_at,
        rotated=view.rotated_at,
        old_until=view.old_until,
        revoked=view.revoked_at,
        revoked_by=view.revoked_by,
        last_used=view.last_used_at,
    )


def _report(info: KeyInfo, text: str, output: str) -> None:
    lines = details(
        text,
        (
            ("name", info.name),
            ("tenant", info.tenant or "all (scope system)"),
            ("scopes", ", ".join(info.scopes)),
            ("topics", "all" if info.topics is None else ", ".join(info.topics)),
            ("rates", ", ".join(f"{name} {rate}" for name, rate in info.rates.items())),
            ("expires", "never" if info.expires is None else iso(info.expires)),
            ("old key", "" if info.old_until is None else f"valid until {iso(info.old_until)}"),
        ),
    )
    print_one(asdict(info) | {"key": text}, output, lambda: [*lines, SHOWN_ONCE], name=text)


def _names(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]
