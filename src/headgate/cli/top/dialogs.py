"""Dialogs above the screen: a confirmation that takes a reason, and the help."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from headgate.cli.output import one_line
from headgate.cli.top.actions import Action
from headgate.cli.top.texts import GREY, HELP


class Confirm(ModalScreen[str | None]):
    """Asks before an action; returns the reason, or None if the user does not want it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "refuse", "No", show=False)]

    def __init__(self, action: Action) -> None:
        super().__init__()
        self._action = action

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(one_line(self._action.question), style="bold"), id="question")
            yield Static(Text(one_line(self._action.detail)))
            yield Input(placeholder="reason, for the audit log (may be empty)", id="reason")
            yield Static(Text("Enter: yes     Esc: no", style=GREY))

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()  # the application would take the reason for a command of its prompt
        self.dismiss(event.value.strip())

    def action_refuse(self) -> None:
        self.dismiss(None)


class Help(ModalScreen[None]):
    """Lists the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, "close", "Close", show=False) for key in ("escape", "question_mark", "q", "enter")
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text("Keys", style="bold"))
            yield Static(Text(HELP))
            yield Static(Text("Esc: close", style=GREY))

    def action_close(self) -> None:
        self.dismiss(None)
