"""Whatever bytes come, to whichever call: an answer that blames the peer, a server that lives, a neighbour at work.

This is the short lane: the same examples in every run. `make fuzz` runs for as long as it is asked to, from any seed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.calls import Method, all_methods
from tests.fuzz.messages import frames
from tests.fuzz.server import Target, running_target
from tests.support.database import Server

METHODS = all_methods()
EXAMPLES = 25


@pytest.fixture(scope="module")
def target(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_target(postgres, template, tmp_path_factory.mktemp("fuzz")) as found:
        yield found


def test_there_is_something_to_fuzz() -> None:
    assert len(METHODS) > 45
    assert {"headgate.v1.WorkerService.Work", "headgate.v1.ScheduleService.Put"} <= {one.name for one in METHODS}


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name.removeprefix("headgate.v1."))
def test_no_bytes_make_a_call_the_servers_fault(target: Target, method: Method) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(raw=st.lists(frames(method.request), min_size=1, max_size=4 if method.many_in else 1))
    def fuzz(raw: list[bytes]) -> None:
        target.caller.ask(method, raw)

    fuzz()
    target.check_alive()
