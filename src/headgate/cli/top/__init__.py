"""`headgate top`: a terminal view of a server, on the same calls as the other commands.

    command.py   the options; imports Textual (extra `top`) only when the command runs
    app.py       the Textual application: keys, prompts, the loop that reads and shows
    dialogs.py   confirmation with a reason, help
    actions.py   what the keys r, c and p do to the selected row, and with which call
    places.py    where the user is: one of six lists, or one job, schedule or operation; the filter of a list
    reading.py   one set of calls per interval: the status, what the place shows, and periodically what fails
    pages.py     rows and cells of each place
    texts.py     the lines around them: header, counts with a sparkline, what fails

One task reads, and waits for the interval after each answer: a slow server is never asked twice at once. Everything
below `app.py` knows nothing of Textual, so that tests need no terminal. It belongs to `cli`, not to a package of its
own: it uses the formats, filters and connections of the commands, and its import contract.
"""
