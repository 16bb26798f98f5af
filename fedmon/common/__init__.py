"""Shared parts of all sides; imports nothing else of ours."""

__version__ = "0.2.0"
