"""`-o yaml`: what our writer writes, a YAML library reads as the same value."""

from __future__ import annotations

import json

import yaml
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.yaml_text import yaml_lines

TEXTS = st.text() | st.sampled_from(["yes", "No", "null", "~", "1.5", "0x1f", "2026-11-16", "- a", "a: b", "#", " "])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(TEXTS, below, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_a_yaml_library_reads_what_json_has(value: object) -> None:
    value = json.loads(json.dumps(value, ensure_ascii=True))
    assert yaml.safe_load("\n".join(yaml_lines(value))) == value
