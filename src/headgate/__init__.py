"""Headgate: a durable job queue whose only infrastructure is PostgreSQL."""
