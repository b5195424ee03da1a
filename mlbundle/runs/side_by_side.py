"""What differs between several runs in what was run: a table with a column for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.runs.record_diff import diff_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class DifferingFact:
    """A condition that is not the same in all runs; a value for each run, None where it has none."""

    section: str
    name: str
    place: str
    values: tuple[Any, ...]


def differing_facts(records: Sequence[Mapping[str, Any]]) -> list[DifferingFact]:
    """Return what differs between runs, what can explain other numbers, and no outcome.

    Sections come in the order in which one looks for an explanation.
    """
    if not records:
        return []
    first, *others = records
    found: dict[str, tuple[str, str, list[Any]]] = {}
    sections: dict[str, None] = {}
    for number, other in enumerate(others, 1):
        for change in diff_records(first, other).changes:
            if change.explains:
                sections.setdefault(change.section)
                # A run that does not differ at this place has what the first one has.
                same = [change.left] * len(records)
                found.setdefault(change.place, (change.section, change.name, same))[2][number] = change.right
    order = list(sections)
    facts = [DifferingFact(section, name, place, tuple(v)) for place, (section, name, v) in found.items()]
    return sorted(facts, key=lambda fact: order.index(fact.section))


def most_telling(facts: Sequence[DifferingFact], count: int) -> list[DifferingFact]:
    """Return at most so many facts in their order: of each section the first, then of each the second, and so on.

    What says only what another one said already (variant and framework of one name), or that something is installed
    in some of the environments, is left out.
    """
    places: dict[str, int] = {}
    said = set()
    ranked = []
    for number, fact in enumerate(facts):
        told = fact.section, str(fact.values)
        if told in said or (fact.section == "distributions" and None in fact.values):
            continue
        said.add(told)
        places[fact.section] = places.get(fact.section, 0) + 1
        ranked.append((places[fact.section], number))
    return [facts[number] for number in sorted(number for _, number in sorted(ranked)[:count])]
