'''The dashboard: pages on the use cases that gRPC and REST serve. It can do nothing that the API cannot.

HTML is rendered on the server; reading and single actions work without JavaScript; htmx and small modules add the rest.

    app.py          the application: pages, error pages, files                        (Litestar, under /ui)
    routing.py      how a page and an action are declared: path, and the rule it follows
    guard.py        who calls: cookie -> session -> identity -> rule; origin and token of every change
    request.py      the request as pages see it, and the answers that they can give
    rendering.py    templates and what each of them knows; filters.py: times, durations, numbers
    errors.py       errors as pages, with the codes of the REST API
    charts.py       lines of a series, and the table that says the same; batch_layout.py: the picture of a batch
    schedule_forms.py  forms of schedules
    models/         what the pages on jobs and operations show
    visitor.py, cookies.py, csrf.py, headers.py, forms.py, navigation.py, static_files.py
    pages/NOUN.py   one module per noun; it is found by being in that folder
    templates/      base.html; NOUN/index.html, and fragments NOUN/_part.html; macros/
    static/         headgate.css for all pages, jobs.css, admin.css, chart.css; js/*.js; vendor/ (see VERSIONS)

To add a page
1. `pages/topics.py`: one call of a use case, then `request.render`.

       @page("/topics", uses="TopicService/ListTopics")
       async def topics(request: PageRequest, after: str = "") -> Html:
           """All topics."""
           found = await request.cases.topics.page(request.caller, after=after)
           return request.render("topics/index.html", fragment="topics/_table.html", topics=found)

   Parameters of the function are parameters of the query or of the path, checked by their types. `uses` names the rule
   of control/permissions.py. Errors of the domain are raised, never caught: they become pages. The menu
   (navigation.py) shows the page as soon as its path is served.
2. `templates/topics/index.html` extends `base.html` (blocks `title`, `content`, `scripts`, `styles`) and includes the
   fragment. Macros, imported `with context`:
   - `macros/ui.html`: heading, table, state, badge, stat, fact, empty, pager, spark, meter, code
   - `macros/forms.html`: action (a button that does one thing), field, hidden
   - `macros/icons.html`: icon
   Every cell of a table has `data-label="COLUMN"`: below 640 px a row becomes a card. The link of a row has the class
   `row-link`: the keys j, k and Enter use it. Numbers have the class `num`.
   Every template knows: me, can("Service/Method"), csrf, path, query, here, now, preferences, visitor, flash, url(),
   static(), ui, app_version. `url("topics", name, before=7)` builds addresses; never join strings. Filters: moment,
   duration, number, short, bytes, percent, plural, as_json, data_json, first_line, sparkline.
3. No inline script or style, no `style=` or `on…=` attribute, no `hx-on`, no `|safe`: the policy forbids them and a
   test finds them. Widths of bars are attributes of SVG. Scripts of a page are modules in `static/js/`, loaded in the
   block `scripts`.

To add an action

       @action("/topics/{topic:str}/pause", uses="AdminService/Pause", confirm=True)
       async def pause_topic(request: PageRequest, topic: str) -> Html:
           await request.cases.admin.pause(request.caller, ..., reason=request.fields.text("reason"))
           return request.done(f'Topic "{topic}" is paused.', to=url("topics", topic), changed="topics")

   In the template: `{{ action(url("topics", t.name, "pause"), "Pause", "AdminService/Pause", question="Pause it?") }}`.
   The macro hides the button from those who may not use it, adds the token and asks the question: in a dialog, or
   without JavaScript on a page. `confirm=True` makes the server insist on it. `typed="41210"` asks for that text.
   `done` answers 303 with a message, or htmx with a toast; `changed` refreshes parts of the page with
   `data-live="topics"`, see static/js/live.js.

Live parts: `<section data-live="topics" hx-get="/ui/topics" hx-trigger="hg:refresh" hx-swap="morph:outerHTML">`; the
page answers htmx with the fragment, and 304 if it has not changed.
'''
