# SPDX-License-Identifier: Apache-2.0
"""What stage 3 expects of a pass from the order of modules in the pass before."""

from __future__ import annotations

from octavo.zero.visits import Visits

#: Five modules with a parameter of 10 bytes each; the last one also has that of the first, as a tied head does.
OWN = [[0], [1], [2], [3], [4, 0]]
SIZES = [10] * 5


def after(*modules: int) -> Visits:
    """Returns the visits of a pass that follows one of these modules."""
    visits = Visits(OWN, SIZES)
    for module in modules:
        visits.add(module)
    visits.end_pass()
    return visits


def test_a_visit_has_a_place_where_the_pass_before_had_the_same():
    visits = after(0, 1, 2)
    assert [visits.add(module) for module in (0, 2, 2, 0)] == [0, None, 2, None]


def test_the_first_pass_expects_nothing():
    visits = Visits(OWN, SIZES)
    assert visits.add(0) is None
    assert not visits.comes_soon(0, kept_bytes=1000)
    assert not visits.transfer_ahead(0, there=set(), transfer_bytes=20)


def test_a_pass_without_a_backward_pass_is_forgotten():
    visits = after(0, 1)
    visits.add(0)
    visits.forget_pass()
    assert [visits.add(0), visits.add(1)] == [0, 1]


def test_a_transfer_has_the_parameters_of_the_next_visits_up_to_its_bytes():
    visits = after(0, 1, 2, 3, 4)
    assert list(visits.transfer_at(1, transfer_bytes=20)) == [1, 2]
    assert list(visits.transfer_at(1, transfer_bytes=21)) == [1, 2, 3]
    assert list(visits.transfer_at(3, transfer_bytes=1000)) == [3, 4, 0]


def test_a_transfer_counts_a_parameter_of_two_visits_once():
    assert list(after(0, 0, 1, 2).transfer_at(0, transfer_bytes=20)) == [0, 1]


def test_a_transfer_ahead_begins_with_what_is_not_there_yet():
    visits = after(0, 1, 2, 3, 4)
    assert list(visits.transfer_ahead(1, there={0, 1}, transfer_bytes=20)) == [2, 3]


def test_a_transfer_ahead_waits_until_the_last_one_is_in_use():
    visits = after(0, 1, 2, 3, 4)
    assert not visits.transfer_ahead(1, there={0, 1, 2}, transfer_bytes=20)
    assert not visits.transfer_ahead(5, there=set(), transfer_bytes=20)


def test_a_parameter_comes_soon_by_the_bytes_of_others_until_then():
    visits = after(0, 1, 1, 2, 4)
    visits.add(0)  # 1, 2 and then 4, which has parameters 4 and 0
    assert visits.comes_soon(0, kept_bytes=30)
    assert not visits.comes_soon(0, kept_bytes=29)
    assert not visits.comes_soon(3, kept_bytes=1000)


def test_nothing_comes_soon_after_a_visit_of_another_order():
    visits = after(0, 1, 0)
    visits.add(1)
    assert not visits.comes_soon(0, kept_bytes=1000)
