"""Every reader of strangers' text refuses by an error of ours, or accepts; the same examples in every run."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fuzz import parsers
from tests.fuzz.messages import TEXTS, mutated

WORDS = st.text(max_size=30) | TEXTS
PIECES = st.lists(WORDS | st.text(' ,:;|/*"\\<>=-._@0123456789smhd[]{}()%T+Z', max_size=10), max_size=6).map("".join)


def near(name: str) -> st.SearchStrategy[bytes]:
    """Something like what is expected, something like a text, or noise."""
    texts = PIECES.map(lambda text: text.encode("utf-8", "surrogatepass"))
    seeds = parsers.SEEDS.get(name)
    return texts | st.binary(max_size=60) | (st.sampled_from(seeds).flatmap(mutated) if seeds else st.nothing())


@pytest.mark.parametrize("name", parsers.TARGETS)
def test_a_reader_refuses_by_an_error_of_ours_or_accepts(name: str) -> None:
    for seed in parsers.SEEDS.get(name, ()):
        parsers.run(name, seed)

    @settings(max_examples=150, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @example(raw=b"")
    @example(raw=b"\x00")
    @example(raw=b"\xff\xfe\x00")
    @example(raw=b"9" * 5_000)
    @example(raw=b"[" * 5_000)
    @given(raw=near(name))
    def fuzz(raw: bytes) -> None:
        parsers.run(name, raw)

    fuzz()
