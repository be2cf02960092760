"""Faults of parts that are still to come."""

from __future__ import annotations

from tests.fault.lab.scenarios import waiting

waiting("F54", "webhook target hostile", "webhooks")
waiting("F55", "crash between webhook send and record", "webhooks")
waiting("F56", "JWKS endpoint down, garbage, slow, rotated", "JWT")
waiting("F59", "200 stuck dashboard SSE readers", "the dashboard")
