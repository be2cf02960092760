"""Metrics as a scraper reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families


@dataclass(slots=True)
class Scrape:
    """All samples of one scrape, by name; each its labels and its value."""

    samples: dict[str, list[tuple[Mapping[str, str], float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Scrape:
        """Read the text; raises what Prometheus would refuse."""
        found = cls()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name with these labels."""
        return sum(value for theirs, value in self.samples.get(name, []) if labels.items() <= dict(theirs).items())

    def labels(self, name: str) -> set[str]:
        """The names of the labels of a metric."""
        return {label for theirs, _ in self.samples.get(name, []) for label in theirs}
