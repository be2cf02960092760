"""The screens on the page of the command line are what the commands print."""

from __future__ import annotations

import pytest

from tests.support import cli_screens

AGAIN = "the page and the commands differ; `make screens` writes the page"


@pytest.mark.parametrize("command", cli_screens.commands())
def test_a_screen_on_the_page_is_what_the_command_prints(command: str) -> None:
    assert f"$ {command}\n{cli_screens.screen(command)}```\n" in cli_screens.PAGE.read_text(), AGAIN


def test_the_page_shows_the_commands_that_people_use_most() -> None:
    shown = {" ".join(command.split()[1:3]) for command in cli_screens.commands()}
    assert {
        "status",
        "job list",
        "job get",
        "workers list",
        "batch list",
        "dead list",
        "pause billing",
        "stats send_invoice",
    } <= shown
