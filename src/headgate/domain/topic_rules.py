"""Where the rules and limits of a topic come from: an operator, the handler's declaration, or the default.

What an operator has set wins until it is released; else the newest declaration counts; else the default. Both are kept
beside each other, so that one can be released without losing the other. Pure: no clock, no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum
from hashlib import sha256
from typing import Any, Final

from headgate.domain.backoff import BackoffKind, RetryPolicy, policy_from
from headgate.domain.errors import InvalidInput
from headgate.domain.jobs import OPERATOR_CHECKS, TopicRules, changed_rules
from headgate.domain.retention import KEEP_RULES
from headgate.domain.timestamps import MICROSECOND, from_unix_us, unix_us
from headgate.domain.topic_limits import Rate, TopicLimits
from headgate.domain.validation import MILLISECOND

RULES: Final = ("max_attempts", "retry", "priority", "time_limit", "ageing_step", *KEEP_RULES, *OPERATOR_CHECKS)
"""Of jobs submitted (time_limit and lease: started) from then on."""
LIMITS: Final = tuple(TopicLimits.__slots__)
NAMES: Final = (*RULES, *LIMITS)
DECLARABLE: Final = tuple(name for name in NAMES if name not in (*KEEP_RULES, *OPERATOR_CHECKS))
"""How long history is kept, and what concerns more than one program, is for operators to decide, not for code."""
SOURCE_MAX_CHARS: Final = 200
DECLARATIONS_KEPT: Final = 5
WORKERS_KEPT: Final = 20
_SPANS: Final = frozenset({"time_limit", "ageing_step", "lease", *KEEP_RULES})
_RATES: Final = frozenset({"rate", "key_rate"})


class Origin(IntEnum):
    """Where a value comes from; the number is on the wire."""

    DEFAULT = 0
    DECLARED = 1
    OPERATOR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What one program declares for a topic, and the last of its workers that did."""

    source: str
    rules: Mapping[str, object] = field(hash=False)
    version: int
    workers: Sequence[str]  # newest first
    by: str  # whose token
    at: datetime

    def same_as(self, other: Declaration) -> bool:
        """Whether both are of one program and say the same."""
        return self.source == other.source and self.rules == other.rules

    @property
    def fingerprint(self) -> str:
        """Tells this from other declarations of the topic."""
        text = json.dumps([self.source, plain_rules(self.rules)], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorValue:
    """What an operator has set."""

    value: object
    by: str
    at: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOrigin:
    """Where one value comes from, for people."""

    origin: Origin
    by: str = ""
    version: int = 0
    at: datetime | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSources:
    """All that is declared and set for a topic. `declarations` are newest first; the first one counts."""

    declarations: Sequence[Declaration] = ()
    settings: Mapping[str, OperatorValue] = field(default_factory=dict, hash=False)
    reported: str = ""  # the last conflict that was logged: the fingerprints of the two declarations

    @property
    def declared(self) -> Declaration | None:
        """The declaration that counts."""
        return self.declarations[0] if self.declarations else None

    def values(self) -> dict[str, object]:
        """The values that are declared or set, by name; all others have their default."""
        declared = {} if self.declared is None else dict(self.declared.rules)
        return declared | {name: one.value for name, one in self.settings.items()}

    def origins(self) -> dict[str, RuleOrigin]:
        """Where the values come from that are not the default, by name."""
        found: dict[str, RuleOrigin] = {}
        if (one := self.declared) is not None:
            declared = RuleOrigin(origin=Origin.DECLARED, by=one.source, version=one.version, at=one.at)
            found = dict.fromkeys(one.rules, declared)
        for name, own in self.settings.items():
            found[name] = RuleOrigin(origin=Origin.OPERATOR, by=own.by, at=own.at, reason=own.reason)
        return found

    def applied(
        self, values: Mapping[str, object], *, release: Collection[str] = (), by: str, at: datetime, reason: str
    ) -> RuleSources:
        """With these values set by an operator, and some released.

        What is set to the same value already stays as it is: who has set it, and when.
        """
        settings = {name: one for name, one in self.settings.items() if name not in release}
        for name, value in values.items():
            if name not in settings or settings[name].value != value:
                settings[name] = OperatorValue(value=value, by=by, at=at, reason=reason)
        return replace(self, settings=settings)

    def declare(
        self, source: str, rules: Mapping[str, object], *, worker: str, by: str, at: datetime
    ) -> tuple[RuleSources, bool]:
        """With this declaration as the newest, and whether it differs from the one that counted before."""
        before = self.declared
        new = Declaration(source=source, rules=dict(rules), version=0, workers=(worker,), by=by, at=at)
        if before is not None and before.same_as(new):
            workers = _newest(worker, before.workers)
            return replace(self, declarations=(replace(before, workers=workers), *self.declarations[1:])), False
        older = next((one for one in self.declarations if one.same_as(new)), None)
        version = 1 if before is None else before.version + 1
        new = replace(new, version=version, workers=_newest(worker, older.workers if older else ()))
        # A worker has one declaration for a topic: a new one replaces it.
        others = [
            replace(one, workers=tuple(name for name in one.workers if name != worker))
            for one in self.declarations
            if one is not older
        ]
        return replace(self, declarations=(new, *others[: DECLARATIONS_KEPT - 1])), True

    def has(self, source: str, rules: Mapping[str, object], *, worker: str) -> bool:
        """Whether this worker is known to declare this, and it is what counts."""
        one = self.declared
        return one is not None and (one.source, one.rules) == (source, rules) and worker in one.workers

    def conflict(self, connected: Collection[str]) -> Declaration | None:
        """What another worker declares that is connected now, if that is not what counts."""
        for one in self.declarations[1:]:
            if one.rules != self.declarations[0].rules and not set(connected).isdisjoint(one.workers):
                return one
        return None

    def overridden(self) -> list[str]:
        """The declared rules for which an operator's value counts."""
        return [] if self.declared is None else [name for name in self.declared.rules if name in self.settings]


def _newest(worker: str, others: Sequence[str]) -> tuple[str, ...]:
    return (worker, *(name for name in others if name != worker))[:WORKERS_KEPT]


def pair_of(one: Declaration, other: Declaration) -> str:
    """Names a conflict of two declarations, whichever of them counts."""
    return "-".join(sorted((one.fingerprint, other.fingerprint)))


def default_of(name: str) -> object:
    """The value of a setting that is neither declared nor set."""
    if name in LIMITS:
        return getattr(TopicLimits(), name)
    return getattr(TopicRules(), "policy" if name == "retry" else name)


def checked_declaration(rules: Mapping[str, object]) -> dict[str, object]:
    """What a handler may declare, each value in its one form; raises InvalidInput. Defaults are declarations too."""
    for name in rules:
        if name not in DECLARABLE:
            raise InvalidInput(name, "cannot be declared by a handler", hint=f"there are {', '.join(DECLARABLE)}")
    return checked_values(rules)


def checked_values(rules: Mapping[str, object]) -> dict[str, object]:
    """Rules and limits by name, each value in its one form; raises InvalidInput."""
    changed = changed_rules(TopicRules(), {name: value for name, value in rules.items() if name in RULES})
    limits = TopicLimits(**{name: value for name, value in rules.items() if name in LIMITS})  # type: ignore[arg-type]
    return {
        name: getattr(limits, name) if name in LIMITS else getattr(changed, "policy" if name == "retry" else name)
        for name in rules
    }


# --- as JSON, to be stored -----------------------------------------------------------------------------------------


def plain_rules(rules: Mapping[str, object]) -> dict[str, object]:
    """Values as JSON has them: spans are microseconds."""
    return {name: _plain(value) for name, value in rules.items()}


def rules_from_plain(stored: Mapping[str, Any]) -> dict[str, object]:
    """The values of `plain_rules`; a name that this release does not know is left out."""
    return {name: _value(name, value) for name, value in stored.items() if name in NAMES}


def plain_sources(sources: RuleSources) -> tuple[str, str]:
    """Declarations and settings as JSON texts."""
    declarations = [
        {
            "source": one.source,
            "rules": plain_rules(one.rules),
            "version": one.version,
            "workers": list(one.workers),
            "by": one.by,
            "at_us": unix_us(one.at),
        }
        for one in sources.declarations
    ]
    settings = {
        name: {"value": _plain(one.value), "by": one.by, "at_us": unix_us(one.at), "reason": one.reason}
        for name, one in sources.settings.items()
    }
    return json.dumps(declarations), json.dumps(settings)


def sources_from_plain(declarations: str | None, settings: str | None, reported: str | None) -> RuleSources:
    """What `plain_sources` made; of a topic without a row, nothing."""
    return RuleSources(
        declarations=tuple(
            Declaration(
                source=one["source"],
                rules=rules_from_plain(one["rules"]),
                version=one["version"],
                workers=tuple(one["workers"]),
                by=one["by"],
                at=from_unix_us(one["at_us"]),
            )
            for one in json.loads(declarations or "[]")
        ),
        settings={
            name: OperatorValue(
                value=_value(name, one["value"]), by=one["by"], at=from_unix_us(one["at_us"]), reason=one["reason"]
            )
            for name, one in json.loads(settings or "{}").items()
            if name in NAMES
        },
        reported=reported or "",
    )


def _plain(value: object) -> object:
    match value:
        case timedelta():
            return value // MICROSECOND
        case RetryPolicy():
            return {
                "kind": value.kind.name.lower(),
                "base_ms": value.base_ms,
                "cap_ms": value.cap_ms,
                "delays_ms": list(value.delays_ms),
            }
        case Rate():
            return {"count": value.count, "period_ms": value.period // MILLISECOND, "burst": value.burst}
        case _:
            return value


def _value(name: str, stored: Any) -> object:
    if stored is None:
        return None
    if name == "retry":
        return policy_from(
            BackoffKind[stored["kind"].upper()], stored["base_ms"], stored["cap_ms"], stored["delays_ms"]
        )
    if name in _RATES:
        return Rate(count=stored["count"], period=stored["period_ms"] * MILLISECOND, burst=stored["burst"])
    value: object = stored * MICROSECOND if name in _SPANS else stored
    return value
