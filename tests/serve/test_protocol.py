"""Messages between the front and its engines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.serve.engine import protocol

EVENT = protocol.SequenceEvent(
    7, [1, 2], "end", [[-0.5, [[1, -0.5]]]], 10, 3, ["what", "remedy"], "AAAA", [[-1.5, []]]
)
MESSAGES = [
    protocol.Open(1, "m.gguf", {"n_ctx": 128}),
    protocol.Submit(
        1, [1, 2], 2, {"seed": 5, "logit_bias": {"3": float("-inf")}}, 10, [4], True, 1, 0, "s"
    ),
    protocol.Cancel(1),
    protocol.AskStats(),
    protocol.Ready(1, 128, 4, "cpu", {"the model": "1f"}),
    protocol.Failed("what", "remedy"),
    protocol.StepEvents([EVENT, protocol.SequenceEvent(8)]),
    protocol.EngineStats({"steps": 1.0}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_arrives_as_it_was_sent(message):
    sent = protocol.frame(message)
    found = protocol.parse(sent[protocol.HEADER :])

    assert protocol.length(sent[: protocol.HEADER]) == len(sent) - protocol.HEADER
    assert type(found) is type(message)
    assert protocol.frame(found) == sent


def test_a_step_has_these_bytes():
    sent = protocol.frame(protocol.StepEvents([protocol.SequenceEvent(3, [5], read=2)]))

    assert sent == b'\0\0\0\x35["StepEvents",[[3,[5],null,[],2,0,null,null,[],0.0]]]'


def test_every_kind_of_message_is_tried_above():
    assert {type(message) for message in MESSAGES} == set(protocol.KINDS.values())


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.integers() | st.sampled_from(["StepEvents", "Submit", "Cancel", "x"]),
        lambda inner: st.lists(inner, max_size=8),
        max_leaves=12,
    ).map(lambda v: json.dumps(v).encode())
)
def test_what_is_no_message_is_refused(data):
    try:
        message = protocol.parse(data)
    except protocol.ProtocolError:
        return
    assert type(message) in protocol.KINDS.values()


def test_a_message_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(protocol, "MAX_FRAME", 100)
    with pytest.raises(protocol.ProtocolError, match="a message has 101 bytes, above 100"):
        protocol.length((101).to_bytes(4, "big"))
    with pytest.raises(protocol.ProtocolError):
        protocol.frame(protocol.Submit(1, list(range(100)), 100, {}))
