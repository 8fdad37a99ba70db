"""PostgreSQL loses its last commits, and what is left of the accepted writes is one chain for each resource."""

from dataclasses import replace

import pytest

from chaos.__main__ import judge
from chaos.chains import Chains, Written
from chaos.kinds import FAULTS, record
from chaos.lossy import Lossy
from seeds import seed

KINDS = {kind: fault for kind, (fault, *_) in FAULTS.items() if kind.startswith("pg-")}


def chains(*lines, held):
    """Lines of one resource: token, previous, fence and value."""
    return Chains([Written("row", *line) for line in lines], {"row": held})


# --- the judge


def test_a_chain_from_the_beginning_to_the_end_is_right():
    assert chains(held="").violations() == []
    assert chains(("b", "a", 2, 2), ("a", "", 1, 1), ("c", "b", 2, 3), held="c").violations() == []


WRONG = {
    "two writes based on one": chains(("a", "", 1, 1), ("b", "a", 2, 2), ("c", "a", 3, 2), held="c"),
    "a write based on one that was lost": chains(("a", "", 1, 1), ("c", "b", 2, 3), held="c"),
    "a write that the resource does not hold": chains(("a", "", 1, 1), ("b", "a", 2, 2), held="a"),
    "a resource that holds what nobody wrote": chains(("a", "", 1, 1), held="b"),
    "a fence that goes back": chains(("a", "", 2, 1), ("b", "a", 1, 2), held="b"),
    "a value that is not what was read and one more": chains(("a", "", 1, 1), ("b", "a", 2, 3), held="b"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_judge_finds_what_is_wrong_with_a_chain(name, tmp_path):
    assert WRONG[name].violations()
    WRONG[name].save(tmp_path / "chains")
    assert Chains.load(tmp_path / "chains") == WRONG[name]


# --- real servers


def planted(history):
    """The same with one break each: a line that is lost, one of another fence, one based on the beginning."""
    chain = sorted(max((history.of(resource) for resource in history.held), key=len), key=lambda line: line.value)
    middle = chain[len(chain) // 2]
    others = [line for line in history.log if line != middle]
    return [replace(history, log=others + more) for more in ([], [replace(middle, fence=1)], [replace(middle, previous=chain[0].previous)])]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_is_one_chain_and_breaks_that_are_planted_are_found(kind):
    run = record(kind, seed(), seconds=3)
    print(run)
    assert not judge(run)
    assert set(run.faults) == {KINDS[kind]}
    assert all(history.violations() for history in planted(run.history))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_servers_that_do_not_ask_for_the_life_build_on_what_they_have_lost(kind):
    """And lose acknowledged writes, so that there is something to build on."""
    number, found = seed(), []
    for attempt in range(5):
        with Lossy(kind, number + attempt, checks_life=False) as world:
            run = world.record(8, FAULTS[kind])
        found = run.history.violations()
        print(run, *found[:3], sep="\n")
        assert run.history.lost() > 0
        if found:
            break
    assert found
