"""Requests to nodes and their outcomes."""
