"""How Hypothesis searches."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The same examples on every machine; REFOLD_HYPOTHESIS=search looks for new ones.
settings.register_profile(
    "gate",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search", deadline=None, database=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("REFOLD_HYPOTHESIS", "gate"))
