"""The composition root: one instance of Headgate, with everything it runs.

`instance.py` builds, starts and stops it, `listeners.py` has its ports, `options.py` how it is to run, `use_cases.py`
what clients may ask it for, `metrics.py` what a scrape answers.
"""

from headgate.server.instance import Server
from headgate.server.options import ServerOptions

__all__ = ["Server", "ServerOptions"]
