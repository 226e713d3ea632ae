"""refold: an event-sourced run journal for AI agents, with deterministic replay."""

__version__ = "0.1.0"
