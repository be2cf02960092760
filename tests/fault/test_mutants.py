"""Planted bugs cannot rot: every patch still fits, says what it breaks, and every invariant has one."""

from __future__ import annotations

import re

import pytest

from tests.fault.lab.checker import INVARIANTS
from tests.fault.lab.mutants import Mutant, applies, mutants
from tests.fault.lab.process import ROOT
from tests.fault.lab.scenarios import all_scenarios

ALL = mutants()


@pytest.mark.parametrize("mutant", ALL, ids=[mutant.name for mutant in ALL])
def test_a_mutant_still_applies(mutant: Mutant) -> None:
    assert applies(mutant, ROOT) == ""
    if mutant.test:
        file, _, name = mutant.test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
    else:
        assert mutant.red in INVARIANTS
        assert mutant.run in all_scenarios()


def test_every_invariant_has_a_mutant_that_breaks_it() -> None:
    assert len(ALL) >= 12
    assert {mutant.red for mutant in ALL if mutant.red} == set(INVARIANTS)


def test_every_part_of_the_product_has_a_mutant() -> None:
    spoilt = {
        part for mutant in ALL for part in re.findall(r"^\+\+\+ b/src/headgate/(\w+)/", mutant.patch.read_text(), re.M)
    }
    assert {"store", "dispatch", "sdk", "api", "domain"} <= spoilt
