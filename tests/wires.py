"""The three wire formats, each with replies that hold what only that provider knows."""

from __future__ import annotations

import json
from typing import Any

from anthropic_server import AnthropicServer
from gemini_server import GeminiServer
from msgspec import Struct
from openai_server import OpenAIServer, Reply

KEY = "sk-test-0123456789abcdef"


class Wire(Struct, frozen=True):
    """A provider: its server, a model litellm sends there, and a first reply that asks for the tool `find`."""

    name: str
    server: type[OpenAIServer]
    model: str
    asking: Reply
    params: dict[str, Any] = {}

    def serve(self, *replies: Reply) -> OpenAIServer:
        """A server of these replies, by turn."""
        return self.server({"replies": list(replies)})

    def request(self, server: OpenAIServer) -> dict[str, Any]:
        """What a request needs to get to *server*."""
        return {"model": self.model, "api_base": server.base_url, "api_key": KEY, **self.params}


CALLS = [{"name": "find", "arguments": {"order": 7}}, {"name": "find", "arguments": {"order": 8}}]

OPENAI = Wire(
    "openai",
    OpenAIServer,
    "openai/gpt-4o-mini",
    {
        "text": "I will look.",
        "calls": [{**call, "extra": {"provider_specific_fields": {"sig": "z"}}} for call in CALLS],
        "message": {
            "reasoning_content": "Two orders.",
            "thinking_blocks": [{"type": "thinking", "thinking": "Two orders.", "signature": "s1"}],
            "annotations": [{"type": "url_citation", "url_citation": {"url": "u", "title": "t"}}],
            "unheard_of": {"k": [1, None]},
        },
        "response": {
            "system_fingerprint": "fp",
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 60},
                "completion_tokens_details": {"reasoning_tokens": 8},
            },
        },
    },
)
ANTHROPIC = Wire(
    "anthropic",
    AnthropicServer,
    "anthropic/claude-sonnet-4-5",
    {
        "blocks": [
            {"type": "thinking", "thinking": "Two orders.", "signature": "s1"},
            {"type": "redacted_thinking", "data": "b2s="},
        ],
        "text": "I will look.",
        "calls": CALLS,
        "usage": {
            "input_tokens": 40,
            "output_tokens": 20,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 0,
        },
    },
    {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4096},
)
GEMINI = Wire(
    "gemini",
    GeminiServer,
    "gemini/gemini-2.5-flash",
    {
        "parts": [{"text": "Two orders.", "thought": True}],
        "text": "I will look.",
        "calls": [{**CALLS[0], "extra": {"thoughtSignature": "c2ln"}}, CALLS[1]],
        "usage": {
            "promptTokenCount": 100,
            "candidatesTokenCount": 12,
            "thoughtsTokenCount": 8,
            "cachedContentTokenCount": 60,
            "totalTokenCount": 120,
        },
    },
)
WIRES = [OPENAI, ANTHROPIC, GEMINI]


def text_of(body: bytes) -> str:
    """A request as text, for looking things up in it."""
    return json.dumps(json.loads(body), sort_keys=True)
