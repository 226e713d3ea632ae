"""Hypothesis profiles. `night` is for `make fuzz`: long, random, and it prints what replays a failure."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "night",
    max_examples=5_000,
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
