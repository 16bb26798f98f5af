"""Runs of a plan over nodes, as the researcher who started them sees them."""
