"""The Textual application: keys and prompts, and the one task that reads and shows."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import ContentSwitcher, DataTable, Input, Static

from headgate.cli.options import interval_of
from headgate.cli.output import exact, one_line
from headgate.cli.top import texts
from headgate.cli.top.actions import action_of
from headgate.cli.top.dialogs import Confirm, Help
from headgate.cli.top.pages import Page, Row
from headgate.cli.top.places import LISTS, Place, View, command_of, filtered, jobs_of
from headgate.cli.top.reading import Reader, Snapshot
from headgate.domain.bulk import dead_filter
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.filters import Field
from headgate.domain.redaction import Redaction
from headgate.sdk import Headgate

AWAY_SECONDS: Final = 1.5
"""After so long without an answer the screen shows a message. The call continues, and its answer ends the message."""
RETRY_SECONDS: Final = 1.0
"""After a call that has failed."""


class TopApp(App[None]):
    """The terminal view of a server."""

    ENABLE_COMMAND_PALETTE = False
    CSS: ClassVar[str] = """
    Screen { layers: base; }
    #header { height: 1; background: $panel; }
    #counts, #tabs, #failing, #keys, #note { height: 1; }
    #tabs { background: $surface; }
    #note { color: $text-muted; padding: 0 1; display: none; }
    #keys { padding: 0 1; }
    #prompt { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    DataTable { height: 1fr; background: $background; }
    #page { height: 1fr; }
    #text { padding: 0 2; }
    ModalScreen { align: center middle; background: $background 60%; }
    .dialog { width: auto; max-width: 100; height: auto; border: round $primary; background: $surface;
              padding: 1 2; }
    .dialog Static { width: auto; max-width: 94; margin-bottom: 1; }
    .dialog Input { width: 70; max-width: 100%; margin-bottom: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"view({number})", show=False) for number in range(1, len(LISTS) + 1)),
        Binding("escape", "leave", show=False),
        Binding("slash", "prompt('/')", show=False),
        Binding("colon", "prompt(':')", show=False),
        Binding("question_mark", "help", show=False),
        Binding("l", "of_job('Log')", show=False),
        Binding("e", "of_job('Events')", show=False),
        *(Binding(key, f"act('{key}')", show=False) for key in ("r", "c", "p", "s")),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(
        self, hg: Headgate, *, server: str, redaction: Redaction, interval: timedelta, read_only: bool = False
    ) -> None:
        super().__init__()
        self.place = Place(view=View.TOPICS)
        self.snapshot: Snapshot | None = None
        self.message = ""
        self._hg, self._server, self._interval, self._read_only = hg, server, interval, read_only
        self._plain = not texts.has_blocks()
        self._reader = Reader(hg, redaction, plain=self._plain)
        self._history: list[Place] = []
        self._wake = asyncio.Event()
        self._away: texts.Away | None = None
        self._prompt = ""
        self._headings: tuple[str, ...] = ()
        self._cursors: dict[Place, str] = {}

    async def run_to_end(self) -> None:
        """Run until the user quits; raises what went wrong in it, which Textual would print with its trace."""
        await self.run_async()
        if self._exception is not None:
            raise self._exception

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()

    def compose(self) -> ComposeResult:
        yield Static(id="header")
        yield Static(id="counts")
        yield Static(id="tabs")
        with ContentSwitcher(initial="table", id="page"):
            yield DataTable(id="table", cursor_type="row", zebra_stripes=True)
            with VerticalScroll(id="one"):
                yield Static(id="text")
        yield Static(id="note")
        yield Static(id="failing")
        yield Input(id="prompt", compact=True)
        yield Static(id="keys")

    def on_mount(self) -> None:
        self._table.focus()
        self._show_frame()
        self.run_worker(self._poll(), name="poll")
        self.set_interval(1.0, self._show_header)  # how long the server has been away

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """Read and show, until the application ends; the next read begins an interval after the answer."""
        while True:
            self._wake.clear()
            place, pause = self.place, self._interval.total_seconds()
            reading = asyncio.ensure_future(self._reader.read(place))
            try:
                done, _ = await asyncio.wait([reading], timeout=AWAY_SECONDS)
                if not done:
                    self._note_away(f"{self._server} does not answer")
                snapshot = await reading
            except HeadgateError as error:
                self._note_away(_reason(error, self._server))
                pause = RETRY_SECONDS
            else:
                self._away = None
                if place == self.place and self.is_running:  # else the user has gone elsewhere meanwhile
                    self.snapshot = snapshot
                    self._show(snapshot)
            finally:
                reading.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    def _note_away(self, reason: str) -> None:
        since = self._away.since if self._away is not None else time.monotonic()
        self._away = texts.Away(since=since, reason=reason)
        self._show_header()

    # --- showing ------------------------------------------------------------------------------------------------------

    @property
    def _table(self) -> DataTable[Text]:
        return self.screen_stack[0].query_one("#table", DataTable)

    def _line(self, name: str) -> Static:
        return self.screen_stack[0].query_one(f"#{name}", Static)

    def _show_header(self) -> None:
        if not self.is_running:  # it quits: its lines are removed before its timer and its task end
            return
        heading = texts.Heading(
            server=self._server,
            interval=self._interval,
            read_only=self._read_only,
            status=None if self.snapshot is None else self.snapshot.status,
            away=self._away,
        )
        self._line("header").update(texts.header(heading, now=time.monotonic()))

    def _show_frame(self) -> None:
        """Show where the user is, before the server has answered."""
        self._show_header()
        self._line("tabs").update(texts.tabs(self.place))
        self._line("keys").update(
            Text(one_line(self.message), style="bold") if self.message else self._keys(), layout=False
        )

    def _keys(self) -> Text:
        return texts.keys(self.place, read_only=bool(self._no_changes()))

    def _no_changes(self) -> str:
        """Why nothing can be changed here now; empty if something can."""
        if self._read_only:
            return "this view is read-only (--read-only)"
        if self.snapshot is not None and self.snapshot.status.read_only:
            return "the database is read-only: nothing can be changed now"
        return ""

    def _show(self, snapshot: Snapshot) -> None:
        self._show_frame()
        status, page = snapshot.status, snapshot.page
        blocks = texts.PLAIN_BLOCKS if self._plain else texts.BLOCKS
        self._line("counts").update(texts.counts(status, snapshot.done, blocks=blocks))
        self._line("failing").update(texts.failing_now(snapshot.failing, now=status.now))
        self.screen_stack[0].query_one(ContentSwitcher).current = "one" if page.lines else "table"
        self._line("text").update(Text("\n").join(Text.from_ansi(line) for line in page.lines))
        self._show_rows(page)
        note = self._line("note")
        note.update(Text(one_line(page.note)))
        note.display = bool(page.note)

    def _show_rows(self, page: Page) -> None:
        """Show the rows; those that stay keep their place, and the cursor stays on its row."""
        table = self._table
        if page.headings != self._headings:
            table.clear(columns=True)
            self._headings = page.headings
            for at, heading in enumerate(page.headings):
                justify = page.rows[0].cells[at].justify if page.rows else None
                table.add_column(Text(heading, justify=justify), key=str(at), width=0)
        # Not measured by Textual: it does so when the table is idle, and lines drawn before that stay cut.
        for at, column in enumerate(table.ordered_columns):
            column.width = max(column.label.cell_len, *(row.cells[at].cell_len for row in page.rows), 0)
        before = [key.value for key in table.rows]
        if before == [row.key for row in page.rows]:
            for row in page.rows:
                old = table.get_row(row.key)
                for at, cell in enumerate(row.cells):
                    if old[at] != cell:
                        table.update_cell(row.key, str(at), cell, update_width=True)
            return
        at = table.cursor_row
        selected = before[at] if 0 <= at < len(before) else self._cursors.get(self.place)
        table.clear()
        for row in page.rows:
            table.add_row(*row.cells, key=row.key)
        keys = [row.key for row in page.rows]
        if keys:
            table.move_cursor(row=keys.index(selected) if selected in keys else min(at, len(keys) - 1))

    # --- moving -------------------------------------------------------------------------------------------------------

    def go(self, place: Place, *, back: bool = False) -> None:
        """Show another place, and read it at once."""
        if place == self.place:
            return
        if not back:
            self._history.append(self.place)
        if (row := self._selected()) is not None:
            self._cursors[self.place] = row.key
        self.place, self.message = place, ""
        self._show_frame()
        self._show_rows(Page())  # what another place has shown would be taken for this one
        self._line("text").update("")
        self._wake.set()

    def action_view(self, number: int) -> None:
        """Show one of the six lists."""
        self._history.clear()
        self.go(Place(view=LISTS[number - 1]))
        self._history[:] = self._history[-1:]

    def action_leave(self) -> None:
        """Close the prompt; else go to the place before; else remove the filter."""
        if self.query_one("#prompt", Input).display:
            self._say("")
            self._close_prompt()
        elif self._history:
            self.go(self._history.pop(), back=True)
        elif self.place.filter:
            self.go(Place(view=self.place.view), back=True)

    def action_move(self, step: int) -> None:
        """Move the cursor."""
        if step > 0:
            self._table.action_cursor_down()
        else:
            self._table.action_cursor_up()

    def _selected(self) -> Row | None:
        """The row under the cursor, as it was last read."""
        if self.snapshot is None or self.snapshot.place != self.place:
            return None
        rows = self.snapshot.page.rows
        at = self._table.cursor_row
        return rows[at] if 0 <= at < len(rows) else None

    def on_data_table_row_selected(self) -> None:
        """Enter: go in."""
        if (row := self._selected()) is None:
            return
        one: Any = row.item
        match self.place.view:
            case View.TOPICS:
                self.go(jobs_of(Field.TOPIC, one.topic))
            case View.JOBS:
                self.go(Place(view=View.JOB, subject=str(one.id)))
            case View.WORKERS:
                self.go(jobs_of(Field.WORKER, one.worker, state="running"))
            case View.SCHEDULES:
                self.go(Place(view=View.SCHEDULE, subject=one.name))
            case View.DEAD:
                self.go(Place(view=View.JOBS, filter=dead_filter(one.topic, group=one.group)))
            case View.OPERATIONS:
                self.go(Place(view=View.OPERATION, subject=str(one.id)))

    def action_of_job(self, view: str) -> None:
        """Show the log or the events of the selected job."""
        if self.place.view in (View.JOB, View.LOG, View.EVENTS):
            self.go(Place(view=View(view), subject=self.place.subject))
        elif self.place.view is View.JOBS and (row := self._selected()) is not None:
            self.go(Place(view=View(view), subject=str(row.item.id)))

    def action_help(self) -> None:
        """List the keys."""
        self.push_screen(Help())

    # --- prompts ------------------------------------------------------------------------------------------------------

    def action_prompt(self, kind: str) -> None:
        """Ask for a filter (`/`) or a command (`:`)."""
        prompt = self.query_one("#prompt", Input)
        self._prompt = kind
        prompt.value = self.place.filter if kind == "/" and self.place.is_list else ""
        prompt.placeholder = (
            'filter, for example state:dead topic:mail* error:"timed out"' if kind == "/" else "command"
        )
        prompt.display = True
        prompt.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Apply what was typed; a mistake stays in the prompt, with what is wrong below it."""
        try:
            self._typed(event.value)
        except InvalidInput as error:
            self._say(str(error))
        else:
            self._close_prompt()

    def _typed(self, value: str) -> None:
        if self._prompt == "/":
            self.go(filtered(self.place.view if self.place.is_list else View.JOBS, value))
            return
        if not value.strip():
            return
        command = command_of(value, here=self.place)
        if command.place is not None:
            self.go(command.place)
        elif command.word == "quit":
            self.exit()
        elif command.word == "help":
            self.action_help()
        elif command.word == "interval":
            self._interval = interval_of(command.argument)
            self._say(f"reads every {exact(self._interval)}")
            self._wake.set()

    def _close_prompt(self) -> None:
        self.query_one("#prompt", Input).display = False
        self._table.focus()

    def _say(self, text: str) -> None:
        self.message = text
        self._show_frame()

    # --- acting -------------------------------------------------------------------------------------------------------

    def action_act(self, key: str) -> None:
        """Ask whether to do what a key does here, and do it."""
        if reason := self._no_changes():
            self._say(reason)
            return
        if self.snapshot is None or self.snapshot.place != self.place:
            return
        row = self._selected()
        item = self.snapshot.page.item if row is None else row.item
        action = None if item is None else action_of(key, self.place, item, self.snapshot.status)
        if action is None:
            return

        def answered(reason: str | None) -> None:
            if reason is not None:
                self.run_worker(act(reason), name="act")

        async def act(reason: str) -> None:
            try:
                self._say(await action.run(self._hg, reason))
            except HeadgateError as error:
                self._say(f"error: {error}")
            self._wake.set()

        self.push_screen(Confirm(action), answered)


def _reason(error: HeadgateError, server: str) -> str:
    """What the header says about an error."""
    match getattr(error, "reported", "") or error.code:
        case "store_unavailable" | "store_busy":
            return "the database does not answer"
        case "read_only":
            return "the database is read-only"
        case "not_connected" | "not_acknowledged":
            return f"{server} does not answer"
        case _:
            return one_line(str(error))
