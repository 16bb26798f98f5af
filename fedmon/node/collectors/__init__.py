"""Collectors read this machine; nothing else of the node does."""
