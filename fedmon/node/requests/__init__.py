"""Requests of researchers: from the wire to a handler and back."""
