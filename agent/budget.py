"""Limits on what one run may use, kept by what is recorded: the same live and on replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from msgspec import Struct

from ..journal.errors import UsageError
from ..replay.ports import Usage
from ..replay.response import Response
from ..replay.run import Run
from ..replay.usage import Totals


class BudgetSpent(Exception):
    """The run has used what it may; everything it did is recorded, and the thread can go on with another run."""


class Budget(Struct, frozen=True):
    """
    What one run may use; None for no limit.

    Args:
        max_cost_micro: Millionths of a dollar, over all answers, unusable ones included.
        max_tokens: Tokens in and out, likewise.
    """

    max_cost_micro: int | None = None
    max_tokens: int | None = None

    def recorded(self) -> str:
        """This budget as it stands in the definition of an agent."""
        return f"{self.max_cost_micro} {self.max_tokens}"

    @classmethod
    def of_run(cls, definition: Mapping[str, str]) -> Budget:
        """The budget that a run began with: a limit that is changed under it is for the next one."""
        if "budget" not in definition:
            return cls()
        return cls(*(None if part == "None" else int(part) for part in definition["budget"].split()))


def read_budget(max_cost: float | None, max_tokens: int | None) -> Budget:
    """
    The budget of these limits.

    Raises:
        UsageError: One is no limit.
    """
    if max_cost is not None and not (_is_number(max_cost) and 0 < max_cost < math.inf):
        raise UsageError(f"max_cost is a number of dollars over 0, not {max_cost!r}")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise UsageError(f"max_tokens is at least 1, not {max_tokens!r}")
    if max_cost is not None and round(max_cost * 1_000_000) < 1:
        raise UsageError(f"max_cost is at least a millionth of a dollar, not {max_cost!r}")
    return Budget(None if max_cost is None else round(max_cost * 1_000_000), max_tokens)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Spent:
    """Holds what a run has used against its budget."""

    def __init__(self, agent: str, budget: Budget) -> None:
        self._agent = agent
        self._budget = budget
        self._limited = budget.max_tokens is not None or budget.max_cost_micro is not None
        self._without_usage = self._without_cost = ""
        """Models that did not say."""

    def add(self, response: Response) -> None:
        """Remember of a response what it does not say; of answers that could not be used that is nobody's fault."""
        if not self._limited:
            return
        usage = response.usage
        if usage.input_tokens is None or usage.output_tokens is None:
            self._without_usage = response.model or "the model"
        if usage.cost_micro is None:
            self._without_cost = response.model or "the model"

    def check(self, run: Run) -> None:
        """
        Before a model is asked again.

        Raises:
            BudgetSpent: A limit is reached, or cannot be kept because an amount is unknown.
        """
        if not self._limited:
            return
        if self._budget.max_tokens is not None and self._without_usage:
            self._unknown("max_tokens", self._without_usage, "how many tokens it used")
        if self._budget.max_cost_micro is not None and self._without_cost:
            self._unknown("max_cost", self._without_cost, "what it cost")
        reached = self._reached(run.usage)
        if reached is not None:
            raise BudgetSpent(f"agent {self._agent!r} has {reached}")

    def again(self, run: Run) -> Callable[[Usage], bool] | None:
        """Whether a model may be asked again, by what the answer used that could not be; None without a limit."""

        def left(failed: Usage) -> bool:
            used = run.usage
            used.add_unusable(failed)
            return self._reached(used) is None

        return left if self._limited else None

    def _reached(self, used: Totals) -> str | None:
        """What of *used* has reached its limit; None if nothing has."""
        budget, tokens = self._budget, used.input_tokens + used.output_tokens
        if budget.max_tokens is not None and tokens >= budget.max_tokens:
            return f"used {tokens} tokens in this run, max_tokens is {budget.max_tokens}"
        if budget.max_cost_micro is not None and used.cost_micro >= budget.max_cost_micro:
            spent, limit = _dollars(used.cost_micro), _dollars(budget.max_cost_micro)
            return f"spent {spent} in this run, max_cost is {limit}"
        return None

    def _unknown(self, limit: str, model: str, what: str) -> None:
        raise BudgetSpent(
            f"agent {self._agent!r}: {limit} cannot be kept, for a response of {model!r} does not say {what}; "
            "leave the limit out, or use a model whose usage and price are known"
        )


def _dollars(micro: int) -> str:
    return f"${micro / 1_000_000:.6f}"
