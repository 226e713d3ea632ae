"""Agents to read and to run."""
