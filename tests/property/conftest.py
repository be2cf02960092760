"""A machine may take its time with one example: that is no finding."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Their assertions are those of test_store_model.py, and are to be explained like them.
pytest.register_assert_rewrite(
    "tests.property.store_machine", "tests.property.store_claims", "tests.property.store_comparison"
)
settings.register_profile("patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
