"""What responses used, summed up: amounts that nobody knows are counted, not guessed."""

from __future__ import annotations

from dataclasses import dataclass

from .ports import Usage


@dataclass(slots=True)
class Totals:
    """
    Sums over recorded responses, and over answers that were paid for and could not be used.

    Args:
        responses: How many were recorded.
        input_tokens: Tokens, as far as they are known.
        output_tokens: Likewise.
        cost_micro: Millionths of a dollar, likewise.
        unknown_usage: Of how many answers nobody knows all tokens.
        unknown_cost: Of how many nobody knows the cost.
        unusable: How many answers came, whole or in part, and could not be used.
    """

    responses: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micro: int = 0
    unknown_usage: int = 0
    unknown_cost: int = 0
    unusable: int = 0

    def add(self, usage: Usage) -> None:
        """Count one response."""
        self.responses += 1
        self._sum(usage)

    def add_unusable(self, usage: Usage | None) -> None:
        """Count the answer of an attempt that failed, if there was one."""
        if usage is not None:
            self.unusable += 1
            self._sum(usage)

    def _sum(self, usage: Usage) -> None:
        read, written, cost = usage.input_tokens, usage.output_tokens, usage.cost_micro
        if read is None or written is None:
            self.unknown_usage += 1
        if read:
            self.input_tokens += read
        if written:
            self.output_tokens += written
        if cost is None:
            self.unknown_cost += 1
        elif cost:
            self.cost_micro += cost
