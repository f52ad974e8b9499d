"""Settings that every test shares."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No time limits and no luck: an example is as slow as its machine, and a red run must be red again.
settings.register_profile(
    "shardbook",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shardbook")
