"""Errors of defining an agent; they are raised before anything runs."""

from __future__ import annotations

from ..journal.errors import UsageError


class ToolDefinitionError(UsageError, TypeError):
    """A function cannot be a tool as it is written, or tools do not fit together; the message names which and why."""
