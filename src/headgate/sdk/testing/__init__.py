"""For tests of code that uses Headgate; users import it as `headgate.testing`. No server needed.

>>> assert await run_inline(send_email, "a@b.example", subject="Hi") == {"sent": True}
>>> with hg.testing() as box:
...     await sign_up("a@b.example")
...     assert [job.topic for job in box.submitted] == ["send-email"]
...     await box.drain()

`handlers` runs one handler. The rest is the box: `store` keeps jobs by the rules of the server, `calls` answers the
client from it, `attempts` runs handlers by the rules of a worker, `waits` lets them wait for each other, `box` drains.
"""

from headgate.sdk.errors import NotDrained as NotDrained
from headgate.sdk.errors import OutsideBox as OutsideBox
from headgate.sdk.testing.box import Box as Box
from headgate.sdk.testing.handlers import ReportRecorder as ReportRecorder
from headgate.sdk.testing.handlers import fake_job as fake_job
from headgate.sdk.testing.handlers import request_cancel as request_cancel
from headgate.sdk.testing.handlers import run_inline as run_inline
from headgate.sdk.testing.handlers import run_job as run_job
from headgate.sdk.testing.views import BoxJob as BoxJob
from headgate.sdk.testing.views import Drained as Drained
from headgate.sdk.testing.views import Run as Run
