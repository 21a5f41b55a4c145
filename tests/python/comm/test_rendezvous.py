# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads that connect through a store in memory."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from octavo.rendezvous import Rendezvous, clone_of


class Group:
    """The part of a process group that a Rendezvous uses."""

    def __init__(self, store: dist.Store, rank: int, size: int):
        self.get_group_store = lambda: store
        self.rank, self.size = lambda: rank, lambda: size


def in_threads(bodies):
    """Runs each body in a thread of its own; returns what they return or raise."""
    results = [None] * len(bodies)

    def run(i, body):
        try:
            results[i] = body()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60.0)
    return results


def groups_of(size: int) -> list[Group]:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=30))
    return [Group(store, rank, size) for rank in range(size)]


def groups_over_tcp(size: int, use_libuv: bool) -> list[Group]:
    options = dict(timeout=timedelta(seconds=30), use_libuv=use_libuv, wait_for_workers=False)
    first = dist.TCPStore("127.0.0.1", 0, is_master=True, **options)
    stores = [first, *(dist.TCPStore("127.0.0.1", first.port, is_master=False, **options) for _ in range(1, size))]
    return [Group(store, rank, size) for rank, store in enumerate(stores)]


def meet(group: Group, text: str, timeout_s: float = 20.0, after_s: float = 0.0):
    def body():
        time.sleep(after_s)
        return Rendezvous(group, "test", timeout_s).exchange(text)

    return body


def test_every_rank_has_every_text():
    groups = groups_of(3)
    for attempt in ("a", "b"):
        texts = [f"{attempt}{rank}" for rank in range(3)]
        assert in_threads([meet(*pair) for pair in zip(groups, texts, strict=True)]) == [texts] * 3


@pytest.mark.parametrize("use_libuv", [True, False])
def test_whoever_waits_for_the_others_in_a_store_of_torchrun_is_woken(use_libuv):
    groups = groups_over_tcp(3, use_libuv)
    began = time.monotonic()
    texts = in_threads([meet(group, "x", after_s=0.2 * group.rank()) for group in groups])
    assert texts == [["x"] * 3] * 3
    assert time.monotonic() - began < 10.0, "a rank has waited for its own timeout of 20 s"


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_rank_that_does_not_come_is_named(missing):
    groups = groups_of(3)
    here = [group for rank, group in enumerate(groups) if rank != missing]
    errors = in_threads([meet(group, "", 0.2) for group in here])
    assert [type(error) for error in errors] == [TimeoutError] * 2
    assert f"[test] rank {missing} did not come within 0.2 s: call it on all 3 ranks" in str(errors[0])
    assert in_threads([meet(group, "x") for group in groups]) == [["x"] * 3] * 3


def test_a_rank_that_came_and_left_is_named():
    groups = groups_of(3)
    left = threading.Event()

    def leaves():
        try:
            meet(groups[1], "", 0.2)()
        finally:
            left.set()

    def comes_later():
        left.wait()
        meet(groups[2], "", 0.2)()

    errors = in_threads([meet(groups[0], "", 2.0), leaves, comes_later])
    assert [type(error) for error in errors] == [TimeoutError] * 3
    assert "rank 2 did not come" in str(errors[1])
    assert "rank 1 did not come" in str(errors[0]) and "rank 1 did not come" in str(errors[2])
    assert in_threads([meet(group, "x") for group in groups]) == [["x"] * 3] * 3


def test_whoever_gives_up_just_as_another_comes_they_meet_the_next_time():
    groups = groups_of(2)
    for i in range(60):
        early, late = (0, 1) if i % 2 else (1, 0)
        jitter_s = (i % 15 - 7) * 2e-4
        in_threads([meet(groups[early], "", 0.02), meet(groups[late], "", 0.02, after_s=0.02 + jitter_s)])
        assert in_threads([meet(group, "x", 5.0) for group in groups]) == [["x"] * 2] * 2, f"at attempt {i}"


def test_a_late_rank_and_those_that_waited_for_it_agree_on_what_became_of_a_meeting():
    timeout_s = 0.02
    for i in range(60):
        rendezvous = [Rendezvous(group, "test", 5.0) for group in groups_of(2)]
        in_threads([lambda one=one: one.exchange("") for one in rendezvous])
        early, late = rendezvous
        early._timeout = timedelta(seconds=timeout_s)
        jitter_s = (i % 15 - 7) * 2e-4

        def come_late(late=late, jitter_s=jitter_s):
            time.sleep(timeout_s + jitter_s)
            return late.exchange("late", "where")

        ends = in_threads([lambda early=early: early.exchange("early", "where"), come_late])
        if isinstance(ends[0], TimeoutError):
            assert [str(end).partition(" within ")[0] for end in ends] == ["[where] rank 1 did not come"] * 2
        else:
            assert ends == [["early", "late"]] * 2


def test_a_store_that_nobody_serves_any_more_is_noticed_in_time():
    options = dict(timeout=timedelta(seconds=60), wait_for_workers=False)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, **options)
    client = dist.PrefixStore("group", dist.TCPStore("127.0.0.1", server.port, is_master=False, **options))
    clone_of(client, "test", timedelta(seconds=2)).set("key", "value")
    assert client.get("key") == b"value" and client.timeout == timedelta(seconds=60)
    del server
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"^\[test\] the store of the process group did not answer within 2 s"):
        clone_of(client, "test", timedelta(seconds=2))
    assert time.monotonic() - began < 30 and client.timeout == timedelta(seconds=60)
