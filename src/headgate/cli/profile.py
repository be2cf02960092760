"""`headgate profile …`: servers and their tokens, in a private file of the user."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli.client_warnings import printed_warnings
from headgate.cli.connection import check_listening
from headgate.cli.options import Output
from headgate.cli.output import Columns, details, print_list, print_one
from headgate.domain.errors import HeadgateError, InvalidInput, Refused
from headgate.domain.validation import check_text
from headgate.ops.profiles import Profile, Profiles, check_name, profiles_file, read_profiles, write_profiles
from headgate.sdk import Forbidden, Headgate
from headgate.sdk.addresses import addresses_of, trust_of

profile = App(name="profile", help="Save servers and their tokens, and choose one of them.")
TOKEN_MAX: Final = 16_384
Name = Annotated[str, Parameter(help="Name of the profile: letters, digits, dots, dashes, underscores.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A profile without its token."""

    name: str
    current: bool
    url: str
    token: bool
    ca: str
    cert: str


PROFILES: Final[Columns[Shown]] = {
    "PROFILE": lambda one: one.name,
    "CURRENT": lambda one: one.current,
    "SERVER": lambda one: one.url,
    "TOKEN": lambda one: "saved" if one.token else None,
    "CA": lambda one: one.ca,
    "CERTIFICATE": lambda one: one.cert,
}


@profile.command(name="list")
def list_command(*, output: Output = "table") -> None:
    """List the profiles of this user, without their tokens."""
    known = read_profiles(_file())
    found = [_shown(name, known) for name in sorted(known.profiles)]
    print_list(
        found,
        output,
        PROFILES,
        name=lambda one: one.name,
        empty="no profiles; create one: headgate profile login NAME --url HOST:PORT",
    )


@profile.command(name="login")
def login_command(
    name: Name,
    *,
    url: Annotated[str, Parameter(help="Server address: host:port, or https://host:port for TLS.")],
    ca: Annotated[str, Parameter(help="Certificate authority of the server (PEM), for https://.")] = "",
    cert: Annotated[str, Parameter(help="Own certificate (PEM), for servers that require one.")] = "",
    key: Annotated[str, Parameter(help="Key of the own certificate (PEM).")] = "",
    no_check: Annotated[bool, Parameter(help="Save the profile without calling the server.")] = False,
    output: Output = "table",
) -> None:
    """Save a server and its token as a profile, and use it from now on. A profile with this name is replaced.

    The token is asked for, or read from standard input. It is never an option: other users of a machine can see
    command lines.
    """
    check_name(name)
    paths = {
        field: str(Path(text).expanduser().absolute()) if text else ""
        for field, text in (("ca", ca), ("cert", cert), ("key", key))
    }
    addresses_of(url, trust_of(*(text or None for text in paths.values())))  # before the token is asked for
    new = Profile(url=url, token=_token(name), **paths)
    if not no_check:
        try:
            _check(new)
        except HeadgateError as error:
            error.add_note("nothing was saved; --no-check saves a profile without calling the server")
            raise
    file = _file()
    known = read_profiles(file).saved(name, new)
    write_profiles(file, known)
    shown = _shown(name, known)
    text = [f"profile {name} is saved in {file}, and in use"]
    if variable := next((one for one in ("HEADGATE_URL", "HEADGATE_PROFILE") if os.environ.get(one)), ""):
        text.append(f"{variable} is set, and counts before it")
    print_one(shown, output, lambda: text, name=name)


@profile.command(name="use")
def use_command(
    name: Annotated[str, Parameter(help="Profile. Without it, no profile is used.")] = "", *, output: Output = "table"
) -> None:
    """Choose the profile of commands that name no server. Without a name, choose none."""
    file = _file()
    known = read_profiles(file).using(name)
    write_profiles(file, known)
    text = f"profile {name} is in use: {known.profiles[name].url}" if name else "no profile is in use"
    print_one({"current": name or None}, output, lambda: [text], name=name)


@profile.command(name="remove")
def remove_command(name: Name, *, output: Output = "table") -> None:
    """Remove a profile with its token. The token itself stays valid: `headgate key revoke` ends it."""
    file = _file()
    write_profiles(file, read_profiles(file).without(name))
    print_one({"name": name, "removed": True}, output, lambda: [f"profile {name} is removed"], name=name)


@profile.command(name="show")
def show_command(
    name: Annotated[str, Parameter(help="Profile. Default: the one in use.")] = "", *, output: Output = "table"
) -> None:
    """Show one profile, without its token."""
    known = read_profiles(_file())
    if not name and not known.current:
        raise InvalidInput("profile", "none is in use", hint="give a name; headgate profile list")
    shown = _shown(name or known.current, known)
    fields = (("server", shown.url), ("token", "saved" if shown.token else "none"), ("ca", shown.ca))
    title = f"{shown.name}   {'in use' if shown.current else 'not in use'}"
    print_one(shown, output, lambda: details(title, (*fields, ("cert", shown.cert))), name=shown.name)


def _file() -> Path | None:
    return profiles_file(os.environ)


def _shown(name: str, known: Profiles) -> Shown:
    one = known.get(name)
    return Shown(name=name, current=name == known.current, url=one.url, token=bool(one.token), ca=one.ca, cert=one.cert)


def _token(name: str) -> str:
    """Ask for the token without showing it, or read it from a pipe; "" for none."""
    if sys.stdin.isatty():
        try:
            given = getpass.getpass(f"Token for {name} (not shown; empty for none): ")
        except EOFError:  # Ctrl-D
            print(file=sys.stderr)
            raise Refused("no token was given, and nothing was saved") from None
    else:
        given = sys.stdin.read(TOKEN_MAX + 1)
    return check_text(given.strip(), field="token", low=0, high=TOKEN_MAX)


def _check(new: Profile) -> None:
    """Raise what the server says about the token; one that may not read is valid as well."""
    ca, certificate, key = new.ca or None, new.cert or None, new.key or None
    check_listening(addresses_of(new.url, trust_of(ca, certificate, key)))

    async def call() -> None:
        async with Headgate(new.url, token=new.token, ca=ca, certificate=certificate, key=key) as hg:
            with suppress(Forbidden):
                await hg.admin.status()

    with printed_warnings():
        asyncio.run(call())
