"""
The generateContent API of Gemini on 127.0.0.1, for models named `gemini/...`.

Scripts are those of `openai_server`; a REPLY says `text` and `calls`, or `parts` (as they are),
and may say `finish_reason`, `usage` and `response`.
"""

from __future__ import annotations

from typing import Any

from openai_server import OpenAIServer, Reply, in_pieces, sse


class GeminiServer(OpenAIServer):
    """The server in this process, for use in a `with` block."""

    root = ""

    def choose(self, body: dict[str, Any]) -> Reply:
        """The reply at index n answers a conversation with n turns of the model."""
        assert not callable(self.script)
        reply: Reply = self.script["replies"][_turn(body)]
        return reply

    def streams(self, path: str, body: dict[str, Any]) -> bool:
        """The method is part of the path."""
        return ":streamGenerateContent" in path

    def whole(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        """A generateContent response."""
        parts: list[dict[str, Any]] = list(reply.get("parts", []))
        if reply.get("text"):
            parts.append({"text": reply["text"]})
        parts += [
            {
                "functionCall": {"name": call["name"], "args": call.get("arguments", {})},
                **call.get("extra", {}),
            }
            for call in reply.get("calls", [])
        ]
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        whole = {
            "candidates": [
                {
                    "content": {"parts": parts, "role": "model"},
                    "finishReason": reply.get("finish_reason", "STOP"),
                    "index": 0,
                }
            ],
            "usageMetadata": reply.get("usage", usage),
            "modelVersion": "gemini-2.5-flash-001",
            "responseId": f"response-{_turn(body)}",
            **reply.get("response", {}),
        }
        return {name: value for name, value in whole.items() if value is not None}

    def events(self, reply: Reply, body: dict[str, Any]) -> list[bytes]:
        """The response part by part; the last piece says why it ends and what was used."""
        whole = self.whole(reply, body)
        candidate = whole["candidates"][0]
        pieces: list[dict[str, Any]] = []
        for part in candidate["content"]["parts"]:
            text = part.get("text")
            pieces += [{**part, "text": piece} for piece in in_pieces(text)] if text else [part]
        head = {key: value for key, value in whole.items() if key not in ("candidates", "usageMetadata")}
        found = [
            {**head, "candidates": [{"content": {"parts": [piece], "role": "model"}, "index": 0}]}
            for piece in pieces
        ]
        end = {
            "content": {"parts": [{"text": ""}], "role": "model"},
            "finishReason": candidate["finishReason"],
        }
        usage = {"usageMetadata": whole["usageMetadata"]} if "usageMetadata" in whole else {}
        found.append({**head, "candidates": [{**end, "index": 0}], **usage})
        return [sse(each) for each in found]


def _turn(body: dict[str, Any]) -> int:
    return sum(1 for each in body["contents"] if each.get("role") == "model")
