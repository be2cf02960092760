"""`headgate config show`: every setting with its value and where that comes from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import App

from headgate.cli.configured import configuration, flag
from headgate.cli.options import Output
from headgate.cli.output import Columns, for_people, print_list
from headgate.ops.configuration import Value, unknown_variables
from headgate.ops.settings import FILE

config = App(name="config", help="Show the settings and where each value comes from.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One setting as it is printed; a secret is masked."""

    name: str
    value: str
    origin: str
    flag: str
    variable: str
    key: str


@config.command(name="show")
def show_command(
    *,
    profile: Annotated[str, flag("profile")] = "",
    config: Annotated[str, flag("config")] = "",
    output: Output = "table",
) -> None:
    """Show every setting with its value and its origin: a variable, a profile, a line of the file, or the default.

    The file is the one of --config, else of HEADGATE_CONFIG, else headgate.toml in the current folder. Secrets are
    masked. Unknown variables, unknown keys and invalid values are errors.
    """
    for error in unknown_variables(os.environ):
        raise error
    found = configuration({"profile": profile or None, "config": config or None})
    print_list([_shown(value) for value in found.values.values()], output, COLUMNS, name=_name, empty="no settings")
    if for_people(output):
        print(f"file: {found.file or f'none ({FILE} in the current folder is read if there is one)'}")


def _shown(value: Value) -> Shown:
    setting = value.setting
    return Shown(
        name=setting.name,
        value=value.text,
        origin=value.where,
        flag=setting.flag if setting.commands else "",
        variable=setting.variable if setting.in_environment else "",
        key=setting.path if setting.in_file else "",
    )


def _name(shown: Shown) -> str:
    return shown.name


COLUMNS: Final[Columns[Shown]] = {
    "SETTING": _name,
    "VALUE": lambda shown: shown.value,
    "ORIGIN": lambda shown: shown.origin,
    "KEY": lambda shown: shown.key,
    "VARIABLE": lambda shown: shown.variable,
}
