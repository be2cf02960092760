"""Flags of commands, made from the table of settings, and the configuration that a command gets."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from headgate.domain.errors import InvalidInput
from headgate.ops.configuration import Configuration, read_configuration, unknown_variables
from headgate.ops.logs import LogFormat
from headgate.ops.setting import Kind, Setting
from headgate.ops.settings import BY_NAME, SETTINGS, settings_of


def flag(name: str) -> Parameter:
    """The help and the default of the flag of a setting."""
    setting = BY_NAME[name]
    variable = f" ({setting.variable})" if setting.in_environment else ""
    default = "" if setting.kind is Kind.SWITCH else setting.default_text
    return Parameter(help=setting.help + variable, show_default=lambda _: default or None)


def configured(
    command: str, *, refuses_unknown: bool = True, reads_also: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of its settings; the function gets what they amount to as `config`.

    Of the command `reads_also` it reads the file and the variables as well, without the flags.
    An unknown variable is refused: otherwise HEADGATE_DATABSE_URL would silently select the embedded database.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        settings = settings_of(command)
        own = inspect.signature(function, eval_str=True).parameters
        parameters = [one for name, one in own.items() if name != "config"]
        parameters += [_parameter(setting) for setting in settings]

        def run(*args: Any, **given: Any) -> None:
            for error in unknown_variables(os.environ) if refuses_unknown else ():
                raise error
            flags = {one.name: given.pop(one.flag_name or one.name, None) for one in settings}
            if (server := given.get("server")) is not None:  # its flags have --config
                flags["config"] = server.config or None
            config = configuration(flags, names=_used(command, reads_also))
            try:
                function(*args, **given, config=config)
            except InvalidInput as error:
                raise config.located(error) from error

        run.__doc__, run.__module__ = function.__doc__, function.__module__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # read by the parser
        run.__annotations__ = {}
        return run

    return decorate


def configuration(flags: dict[str, object], *, names: list[str] | None = None) -> Configuration:
    """The configuration of this process, with the flags of a command."""
    return read_configuration(flags=flags, environ=os.environ, folder=Path(), names=names)


def log_format(config: Configuration) -> LogFormat:
    """The format of log lines."""
    return "json" if config.text("log_format") == "json" else "text"


def client_configuration(*, url: str = "", token: str = "", profile: str = "", config: str = "") -> Configuration:
    """The configuration of a command that calls a server; an empty flag is one that is not given."""
    given = {"url": url, "token": token, "profile": profile, "config": config}
    flags: dict[str, object] = {name: text or None for name, text in given.items()}
    return configuration(flags, names=["redact", *(one.name for one in SETTINGS if one.section == "client")])


def _used(*commands: str) -> list[str]:
    """The settings of commands: their flags, and those of databases and payloads that they have no flag for."""
    flags = [one.name for one in SETTINGS if not set(commands).isdisjoint(one.commands)]
    others = [one.name for one in SETTINGS if one.in_file and not one.commands and one.section == "payload"]
    return [*flags, *others, *(name for name in ("direct_database_url", "data") if name not in flags)]


def _parameter(setting: Setting) -> inspect.Parameter:
    kind: Any = str
    if setting.kind is Kind.SWITCH:
        kind = bool
    elif setting.choices and all(choice.islower() for choice in setting.choices):
        kind = Literal[setting.choices]  # completed by shells; the parser would refuse --log-level info
    return inspect.Parameter(
        setting.flag_name or setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, flag(setting.name)],
    )
