"""
The Messages API of Anthropic on 127.0.0.1, for models named `anthropic/...`.

Scripts are those of `openai_server`; a REPLY says `text` and `calls`, or `blocks` (content blocks as they are),
and may say `stop_reason`, `usage` and `response`.
"""

from __future__ import annotations

import json
from typing import Any

from openai_server import OpenAIServer, Reply, in_pieces, sse


class AnthropicServer(OpenAIServer):
    """The server in this process, for use in a `with` block."""

    root = ""

    def whole(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        """A message."""
        turn = sum(1 for message in body["messages"] if message["role"] == "assistant")
        blocks: list[dict[str, Any]] = list(reply.get("blocks", []))
        if reply.get("text"):
            blocks.append({"type": "text", "text": reply["text"]})
        for position, call in enumerate(reply.get("calls", [])):
            identity = call.get("id", f"toolu_{turn}_{position}")
            blocks.append(
                {"type": "tool_use", "id": identity, "name": call["name"], "input": call.get("arguments", {})}
            )
        used = any(block["type"] == "tool_use" for block in blocks)
        return {
            "id": f"msg_{turn}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": blocks,
            "stop_reason": reply.get("stop_reason", "tool_use" if used else "end_turn"),
            "stop_sequence": None,
            "usage": reply.get("usage", {"input_tokens": 10, "output_tokens": 5}),
            **reply.get("response", {}),
        }

    def events(self, reply: Reply, body: dict[str, Any]) -> list[bytes]:
        """A message as the events of a stream."""
        whole = self.whole(reply, body)
        usage = whole["usage"]
        start = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        found: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
        for index, block in enumerate(whole["content"]):
            opening, deltas = _opened(block)
            found.append({"type": "content_block_start", "index": index, "content_block": opening})
            found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            found.append({"type": "content_block_stop", "index": index})
        found.append(
            {
                "type": "message_delta",
                "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
                "usage": {"output_tokens": usage["output_tokens"]},
            }
        )
        found.append({"type": "message_stop"})
        return [sse(each, each["type"]) for each in found]


def _opened(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it is opened, and what is then added to it."""
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in in_pieces(block["text"])]
            return {**block, "text": ""}, deltas
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in in_pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case "tool_use":
            text = json.dumps(block["input"]) if block["input"] else ""
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in in_pieces(text)]
            return {**block, "input": {}}, deltas
        case _:
            return block, []
