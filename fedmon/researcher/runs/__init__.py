"""Runs of a plan over nodes, at their researcher."""
