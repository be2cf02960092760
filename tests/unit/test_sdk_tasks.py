"""A task is the function it was made from: called directly it runs here, and nothing is submitted."""

from __future__ import annotations

import functools
import inspect

import pytest

import headgate
from headgate import AsyncTask, Headgate, InvalidInput, Job, PlainTask, this_job
from headgate.domain.release import version
from headgate.testing import ReportRecorder, fake_job

hg = Headgate("127.0.0.1:1")  # nothing listens there


@hg.job("add")
async def add(a: int, b: int = 1, *, job: Job = this_job) -> int:
    """Add."""
    if job is not this_job:
        await job.progress(1, 2)
    return a + b


@hg.job("double", priority="high")
def double(job: Job, n: int) -> int:
    return n * 2 * job.attempt


async def test_a_task_called_directly_is_the_function_as_it_was_written() -> None:
    assert await add(1, b=2) == 3
    recorder = ReportRecorder()
    assert await add(1, job=fake_job(recorder=recorder)) == 2
    assert recorder.progress == [(1, 2, "")]
    assert double(fake_job(attempt=3), 2) == 12
    assert double.with_options(priority="bulk")(fake_job(), n=1) == 2
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        double(2)  # type: ignore[call-arg]


async def test_a_direct_call_submits_nothing() -> None:
    with hg.testing() as box:
        await add(1)
        assert box.submitted == []


def test_tools_see_the_function_behind_a_task() -> None:
    assert isinstance(add, AsyncTask)
    assert isinstance(double, PlainTask)
    assert (add.__name__, add.__doc__) == ("add", "Add.")
    assert list(inspect.signature(double).parameters) == ["job", "n"]
    partial = hg.register("partial", functools.partial(add.function, 1))
    assert isinstance(partial, AsyncTask)


def test_a_task_is_not_registered_a_second_time() -> None:
    with pytest.raises(InvalidInput, match=r"other: needs a function .* add is a task already; register add\.function"):
        hg.register("other", add)
    again = hg.register("other", add.function)
    assert again.topic == "other"


def test_the_package_has_its_version_and_every_name_it_lists() -> None:
    assert headgate.__version__ == version()
    assert set(headgate.__all__) <= set(dir(headgate))
    for name in headgate.__all__:
        assert getattr(headgate, name) is not None
    for name in ("JobOptions", "PriorityTier", "Rate", "RetryPolicy", "ScheduleOptions", "TopicSettings", "Unique"):
        assert name in headgate.__all__
