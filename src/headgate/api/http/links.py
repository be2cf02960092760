"""Links of the OpenAPI document: which operations accept what another one has made, and where its answer names it.

Readers and tools follow them: `make api-check` creates a job, and then reads, moves and cancels this one.
"""

from __future__ import annotations

from typing import Any, Final

MADE: Final[dict[str, dict[str, str]]] = {
    "submit_job": {"job_id": "$response.body#/id"},
    "submit_jobs": {"job_id": "$response.body#/receipts/0/id"},
    "open_batch": {"batch_id": "$response.body#/id"},
    "start_bulk": {"operation_id": "$response.body#/id"},
    "create_key": {"key_id": "$response.body#/info/id"},
    "create_webhook": {"webhook_id": "$response.body#/id"},
    "check_webhook": {"webhook_id": "$request.path.webhook_id", "delivery_id": "$response.body#/id"},
    "put_schedule": {"name": "$request.path.name"},
    "put_policy": {"topic": "$request.path.topic"},
    "set_topic": {"topic": "$request.path.topic"},
}
"""By operation: the path parameters that its answer gives a value to."""


def add_links(paths: dict[str, Any]) -> None:
    """Link each operation that makes something to all those whose path names it."""
    operations = {
        operation["operationId"]: operation
        for path in paths.values()
        for operation in path.values()
        if isinstance(operation, dict) and "operationId" in operation
    }
    needed = {name: _path_parameters(operation) for name, operation in operations.items()}
    for maker, made in MADE.items():
        links = {
            user: {"operationId": user, "parameters": {parameter: made[parameter] for parameter in sorted(wanted)}}
            for user, wanted in needed.items()
            if wanted and wanted == set(made) and user != maker
        }
        responses = operations[maker]["responses"]
        for status in sorted(one for one in responses if one.startswith("2")):
            responses[status]["links"] = links


def _path_parameters(operation: dict[str, Any]) -> set[str]:
    return {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
