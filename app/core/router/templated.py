"""A chat request whose prompt a rule's own template makes: sent as a completion, answered as a chat.

Used by the dispatcher where a rule has `chat_template`. Pure.
"""

import msgspec

from app.core.errors import RequestInvalid
from app.core.router.bodies import encode, fields_of
from app.core.router.templates import PromptTemplate

COMPLETIONS_PATH = "/v1/completions"
_NOT_SENT = frozenset({"messages", "tools", "tool_choice", "parallel_tool_calls"})
_END = b"\n\n"


def completion_body(body: bytes, template: PromptTemplate) -> bytes:
    """The completion request for a chat request.

    Raises:
        RequestInvalid: without messages.
        RoutesInvalid: when the template fails on them.
    """
    fields = fields_of(body)
    if "messages" not in fields:
        raise RequestInvalid("The request has no messages for the chat template of its rule.")
    given = {name: msgspec.json.decode(value) for name, value in fields.items()}
    prompt = template.render(
        {
            "messages": given["messages"],
            "tools": given.get("tools"),
            "add_generation_prompt": True,
            "bos_token": "",
            "eos_token": "",
        }
    )
    sent: dict[str, object] = {k: v for k, v in fields.items() if k not in _NOT_SENT}
    if "max_completion_tokens" in sent:
        sent["max_tokens"] = sent.pop("max_completion_tokens")
    return encode({**sent, "prompt": prompt})


def chat_answer(body: bytes) -> bytes:
    """A whole completion as a chat answer."""
    answer = msgspec.json.decode(body)
    for choice in answer.get("choices", ()):
        choice["message"] = {"role": "assistant", "content": choice.pop("text", "")}
    answer["object"] = "chat.completion"
    return msgspec.json.encode(answer)


class ChatEvents:
    """Turns a completion's event stream into a chat's, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._tail = b""
        self._is_first = True

    def __call__(self, piece: bytes) -> bytes:
        """The chat events for a piece; b"" says that it was the last."""
        *frames, self._tail = (self._tail + piece.replace(b"\r\n", b"\n")).split(_END)
        return b"".join(self._translated(frame) + _END for frame in frames)

    def _translated(self, frame: bytes) -> bytes:
        data = frame.removeprefix(b"data:").strip()
        if not frame.startswith(b"data:") or not data.startswith(b"{"):
            return frame
        event = msgspec.json.decode(data)
        if event.get("object") == "text_completion":
            event["object"] = "chat.completion.chunk"
        for choice in event.get("choices", ()):
            text = choice.pop("text", "")
            delta: dict[str, object] = {"content": text} if text else {}
            if self._is_first:
                delta = {"role": "assistant", **delta}
                self._is_first = False
            choice["delta"] = delta
        return b"data: " + msgspec.json.encode(event)
