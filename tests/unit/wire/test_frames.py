"""Frames survive any cut of the stream, and nothing but frames gets through."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.wire import frames
from mlbundle.wire.events import EVENT_TYPES, Progress, Window, event_from_document
from mlbundle.wire.job import Job, JobError, LimitsJob, ModelJob, job_from_document

some_frames = st.lists(st.tuples(st.sampled_from(frames.KINDS), st.binary(max_size=300)), max_size=8)


@given(some_frames, st.lists(st.integers(1, 50), max_size=40))
def test_frames_come_back_however_the_stream_is_cut(sent, cuts) -> None:
    stream = b"".join(frames.encode(kind, payload) for kind, payload in sent)
    decoder = frames.FrameDecoder()
    received = []
    position = 0
    for cut in [*cuts, len(stream) + 1]:
        received += list(decoder.feed(stream[position : position + cut]))
        position += cut
    assert [tuple(f) for f in received] == sent
    assert decoder.pending_bytes == 0


@given(st.binary(max_size=400))
def test_bytes_that_are_no_frames_raise_only_frame_errors(data: bytes) -> None:
    decoder = frames.FrameDecoder()
    try:
        for frame in decoder.feed(data):
            frame.document()
    except frames.FrameError:
        pass
    assert decoder.pending_bytes <= len(data)


def test_a_length_over_the_cap_is_refused_before_anything_is_kept() -> None:
    header = (frames.MAX_PAYLOAD_BYTES + 1).to_bytes(4, "big") + bytes([frames.EVENT])
    with pytest.raises(frames.FrameError, match="no frame"):
        list(frames.FrameDecoder().feed(header))
    with pytest.raises(frames.FrameError, match="no frame"):
        frames.read_frame(io.BytesIO(header))


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_stream_that_ends_inside_a_frame_is_noticed(cut: int) -> None:
    stream = frames.encode(frames.EVENT, b"{}x")[:cut]
    with pytest.raises(frames.FrameError, match="ended inside"):
        frames.read_frame(io.BytesIO(stream))


def test_a_deep_json_payload_is_an_error_and_not_a_crash() -> None:
    frame = frames.Frame(frames.EVENT, b"[" * 100_000)
    with pytest.raises(frames.FrameError):
        frame.document()


@pytest.mark.parametrize("kind", sorted(EVENT_TYPES))
def test_every_event_comes_back_as_it_was(kind: str) -> None:
    event = EVENT_TYPES[kind](t_ns=7, seq=3, source="host")
    assert event_from_document(event.to_document()) == event


def test_unknown_kinds_and_keys_are_passed_over() -> None:
    assert event_from_document({"kind": "telepathy"}) is None
    assert event_from_document({"kind": "progress", "done": 2, "mood": "good"}) == Progress(done=2)


def test_an_event_with_a_wrong_time_is_refused() -> None:
    with pytest.raises(ValueError, match="t_ns"):
        event_from_document({**Window().to_document(), "t_ns": "noon"})


def job() -> Job:
    return Job(
        run_id="20261120T142503Z-7f3a9c",
        model=ModelJob(
            predictor="onnxruntime",
            files={"graph": "model.onnx"},
            inputs=({"layer_name": "x"},),
            outputs=({},),
        ),
        dataset=None,
        scenario={"name": "online", "options": {}},
        accuracy=None,
        limits=LimitsJob(cpus=(0, 2)),
        paths={"assets": "/a", "scratch": "/s"},
    )


def test_a_job_comes_back_as_it_was() -> None:
    import json

    assert job_from_document(json.loads(json.dumps(job().to_document()))) == job()


@pytest.mark.parametrize(
    "change",
    [{"schema": "mlbundle/job/v9"}, {"protocol": 2}, {"model": {}}, {"limits": None}, {"trace_level": "all"}],
)
def test_a_job_that_is_none_is_refused(change: dict) -> None:
    with pytest.raises(JobError):
        job_from_document({**job().to_document(), **change})
