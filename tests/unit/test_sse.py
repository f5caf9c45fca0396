"""Looking at streams as they pass: counts, ends and cuts do not depend on how the bytes arrive."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.router.sse import FramePeek, StreamStats, text_of, usage_of_body
from app.core.router.wire import Wire

CHAT = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}]}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hi"}}]}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" \\"content\\":\\"x"}}]}\n\n'
    b'data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}]}\n\n'
    b'data: {"choices":[],"usage":{"completion_tokens":2,"prompt_tokens":32,'
    b'"prompt_tokens_details":{"cached_tokens":31}},"timings":{"cache_n":31}}\n\n'
    b"data: [DONE]\n\n"
)
COMPLETIONS = (
    b'data: {"choices":[{"text":"1","index":0,"logprobs":null,"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"completion_tokens":1,"prompt_tokens":2}}\n\ndata: [DONE]\n\n'
)
RESPONSES = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"He"}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"y"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":'
    b'{"input_tokens":31,"output_tokens":2,"input_tokens_details":{"cached_tokens":24}}}}\n\n'
)
MESSAGES = (
    b'event: message_start\ndata: {"type":"message_start","message":{"content":[],"usage":'
    b'{"cache_read_input_tokens":24,"input_tokens":8,"output_tokens":0}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"Hello"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},'
    b'"usage":{"output_tokens":1}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)

STREAMS = {
    Wire.CHAT: (CHAT, 2, 32, 2, 31, "length"),
    Wire.COMPLETIONS: (COMPLETIONS, 1, 2, 1, 0, "stop"),
    Wire.RESPONSES: (RESPONSES, 2, 31, 2, 24, "completed"),
    Wire.MESSAGES: (MESSAGES, 1, 32, 1, 24, "max_tokens"),
}


def look(wire: Wire, *pieces: bytes) -> StreamStats:
    stats = StreamStats()
    peek = FramePeek(wire, stats)
    for number, piece in enumerate(pieces):
        assert peek.feed(piece, float(number)) == len(piece)
    return stats


@pytest.mark.parametrize("wire", STREAMS)
def test_stream_of_each_wire_is_counted(wire: Wire) -> None:
    stream, tokens, prompt, completion, cached, reason = STREAMS[wire]
    stats = look(wire, stream)
    assert stats.tokens == tokens
    assert stats.prompt_tokens == prompt
    assert stats.completion_tokens == completion
    assert stats.cached_tokens == cached
    assert stats.finish_reason == reason
    assert stats.is_complete
    assert not stats.has_error


@given(st.sampled_from(list(STREAMS)), st.lists(st.integers(0, 700), max_size=8), st.booleans())
def test_stream_cut_anywhere_is_counted_the_same(wire: Wire, cuts: list[int], crlf: bool) -> None:
    stream = STREAMS[wire][0]
    whole = look(wire, stream)
    if crlf:
        stream = stream.replace(b"\n", b"\r\n")
    places = [0, *sorted(cuts), len(stream)]
    parts = [stream[start:end] for start, end in itertools.pairwise(places)]
    pieces = look(wire, *parts)
    for name in ("tokens", "prompt_tokens", "completion_tokens", "finish_reason", "is_complete"):
        assert getattr(pieces, name) == getattr(whole, name)


def test_role_chunk_alone_is_no_content() -> None:
    stats = look(Wire.CHAT, CHAT.split(b"\n\n")[0] + b"\n\n")
    assert stats.first_content_at is None
    assert stats.tokens == 0


@pytest.mark.parametrize(
    "delta",
    [
        b'{"reasoning_content":"hm"}',
        b'{"content": "x"}',
        b'{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}',
    ],
)
def test_reasoning_and_tool_calls_are_content(delta: bytes) -> None:
    frame = b'data: {"choices":[{"index":0,"delta":' + delta + b',"finish_reason":null}]}\n\n'
    assert look(Wire.CHAT, frame).tokens == 1


def test_error_of_the_engine_is_seen_and_is_no_end() -> None:
    for wire, frame in (
        (Wire.CHAT, b'data: {"error":{"message":"x"}}\n\n'),
        (Wire.MESSAGES, b'event: error\ndata: {"type":"error","error":{}}\n\n'),
        (Wire.RESPONSES, b'event: error\ndata: {"type":"error"}\n\n'),
    ):
        stats = look(wire, frame)
        assert stats.has_error
        assert not stats.is_complete


def test_stump_is_not_complete() -> None:
    assert not look(Wire.CHAT, CHAT[:-16]).is_complete
    assert not look(Wire.RESPONSES, RESPONSES[:-20]).is_complete


def test_speed_is_measured_between_first_and_last_content() -> None:
    stats = StreamStats(tokens=11, first_content_at=2.0, last_content_at=4.0)
    assert stats.tokens_per_s == 5.0
    assert StreamStats(tokens=1, first_content_at=2.0, last_content_at=2.0).tokens_per_s == 0.0


@pytest.mark.parametrize("cut", [0, 30, 120])
def test_on_frame_ends_the_answer_after_its_frame(cut: int) -> None:
    first_two = b"\n\n".join(CHAT.split(b"\n\n")[:2]) + b"\n\n"
    peek = FramePeek(
        Wire.CHAT, StreamStats(), lambda frame: "length" if text_of(frame) == "Hi" else None
    )
    sent = b""
    for piece in (CHAT[:cut], CHAT[cut:]):
        sent += piece[: peek.feed(piece, 0.0)]
    assert sent == first_two
    assert peek.ended_by == "length"
    assert text_of(peek.last_frame) == "Hi"


def test_frame_without_an_end_is_given_up_not_hoarded() -> None:
    peek = FramePeek(Wire.CHAT, StreamStats())
    for _ in range(9):
        assert peek.feed(b"x" * 1_000_000, 0.0) == 1_000_000
    assert not peek.is_between_frames
    assert len(peek._tail) == 0


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b'data: {"choices":[{"delta":{"content":"a"}}]}', "a"),
        (b'data: {"choices":[{"text":"b"}]}', "b"),
        (b'event: x\ndata: {"type":"response.output_text.delta","delta":"c"}', "c"),
        (b'event: x\ndata: {"type":"content_block_delta","delta":{"text":"d"}}', "d"),
        (b"data: [DONE]", ""),
        (b": comment", ""),
        (b"data: {broken", ""),
        (b'data: {"choices":[]}', ""),
    ],
)
def test_text_of_reads_every_wire(frame: bytes, text: str) -> None:
    assert text_of(frame) == text


@pytest.mark.parametrize(
    ("body", "tokens", "reason"),
    [
        (b'{"choices":[{"finish_reason":"stop"}],"usage":{"completion_tokens":3}}', 3, "stop"),
        (b'{"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":4}}', 4, "end_turn"),
        (b'{"status":"completed","usage":{"output_tokens":5}}', 5, "completed"),
        (b'{"data":[1]}', 0, ""),
        (b"not json", 0, ""),
        (b'{"usage":null,"choices":3}', 0, ""),
    ],
)
def test_usage_of_a_whole_body_is_read(body: bytes, tokens: int, reason: str) -> None:
    stats = StreamStats()
    usage_of_body(body, stats)
    assert stats.completion_tokens == tokens
    assert stats.finish_reason == reason
