"""`python -m headgate.cli`: the same as the `headgate` command."""

import sys

from headgate.cli import main

sys.exit(main())
