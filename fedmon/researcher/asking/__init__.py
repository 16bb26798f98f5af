"""Requests to nodes, and what came of each."""
