"""Recognises, in the parameters of a request, the tools that the provider itself runs inside the model call. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_HARMLESS = (
    # Called by us, when the model asks for it.
    *("function", "custom", "computer", "bash", "text_editor", "memory", "local_shell", "apply_patch"),
    # Only look.
    *("web_search", "web_fetch", "file_search", "google_search", "google_maps", "enterprise_web_search"),
    *("url_context", "tool_search", "retrieval", "image_generation"),
)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def acting(params: Mapping[str, Any]) -> list[str]:
    """
    Names of the tools that the provider runs and that may act: whatever is not known to be harmless.

    Args:
        params: Parameters of a request, as chat completions or a provider's own API have them.
    """
    tools = params.get("tools")
    names = [name for tool in (tools if isinstance(tools, list | tuple) else ()) for name in _names(tool)]
    if params.get("mcp_servers"):
        names.append("mcp_servers")
    return [name for name in names if not _snake(name).startswith(_HARMLESS)]


def _names(tool: Any) -> list[str]:
    if not isinstance(tool, Mapping):
        return []
    kind = tool.get("type")
    if isinstance(kind, str):
        return [kind]
    # Without a type it is described (a function of ours), or named by its only key.
    own = {"name", "function", "function_declarations", "functionDeclarations"}
    return [] if own & tool.keys() else [str(name) for name in tool]


def _snake(name: str) -> str:
    return _HUMP.sub("_", name).lower()
