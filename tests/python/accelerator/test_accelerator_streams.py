# SPDX-License-Identifier: Apache-2.0
"""Streams and events: the same tests on every accelerator that is here."""

import threading
import time

import pytest
import torch


def test_a_stream_is_current_in_its_context_only(accelerator):
    before = accelerator.current_stream()
    stream = accelerator.Stream()
    assert stream != before
    with accelerator.stream(stream):
        assert accelerator.current_stream() == stream
        with accelerator.stream(None):
            assert accelerator.current_stream() == stream
    assert accelerator.current_stream() == before
    with pytest.raises(KeyError), accelerator.stream(stream):
        raise KeyError
    assert accelerator.current_stream() == before


def test_a_stream_of_another_device_type_is_refused(accelerator):
    other = torch.Stream(stream_id=0, device_index=0, device_type=0 if accelerator._name == "cuda" else 1)
    with pytest.raises(ValueError, match=rf"expected a .*of.* {accelerator._name}, got "), accelerator.stream(other):
        pass


def test_what_is_no_stream_is_refused(accelerator):
    for other in (1, "stream", accelerator.Event(), torch.ones(1)):
        with pytest.raises(TypeError, match=r"^\[accelerator\.stream\] expected a stream of .* got \w+$"):
            accelerator.stream(other).__enter__()


def test_streams_are_instances_of_the_class(accelerator):
    streams = accelerator.Stream(), accelerator.current_stream(), accelerator.default_stream()
    assert all(isinstance(stream, accelerator.Stream) for stream in streams)
    events = accelerator.Event(), accelerator.current_stream().record_event()
    assert all(isinstance(event, accelerator.Event) for event in events)


def test_the_same_stream_is_the_same_object(accelerator):
    assert accelerator.current_stream() is accelerator.current_stream(0)
    assert accelerator.default_stream() is accelerator.default_stream(0)


def test_another_thread_has_its_own_current_stream(accelerator):
    seen = []
    with accelerator.stream(accelerator.Stream()):
        thread = threading.Thread(target=lambda: seen.append(accelerator.current_stream()))
        thread.start()
        thread.join()
        assert seen[0] != accelerator.current_stream()


def test_work_on_one_stream_is_waited_for_on_another(accelerator):
    values = torch.ones(1 << 20, device=accelerator.device(0))
    stream = accelerator.Stream()
    stream.wait_stream(accelerator.current_stream())
    with accelerator.stream(stream):
        for _ in range(20):
            values.add_(1)
        done = stream.record_event()
    accelerator.current_stream().wait_event(done)
    assert values.sum().item() == 21 << 20
    stream.synchronize()
    accelerator.synchronize()
    assert stream.query() and done.query()


def test_events_measure_time(accelerator):
    start, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
    begun = time.perf_counter()
    start.record()
    start.synchronize()
    time.sleep(0.02)
    end.record(accelerator.current_stream())
    end.synchronize()
    wall_ms = (time.perf_counter() - begun) * 1000
    assert start.query() and end.query()
    assert 18 <= start.elapsed_time(end) <= wall_ms + 1
    assert end.elapsed_time(start) <= -18


def test_events_are_made_alike(accelerator):
    device = accelerator.device(0)
    assert accelerator.Event(enable_timing=False, blocking=True, interprocess=False, device=device).query()
    with pytest.raises(ValueError, match=r"expected .*, got .*meta"):
        accelerator.Event(device=torch.device("meta"))
    with pytest.raises(NotImplementedError, match="use interprocess=False"):
        accelerator.Event(interprocess=True)


def test_events_without_timing_say_so(accelerator):
    start, end = accelerator.Event(), accelerator.Event()
    start.record()
    end.record()
    accelerator.synchronize()
    with pytest.raises((ValueError, RuntimeError), match="timing"):
        start.elapsed_time(end)
