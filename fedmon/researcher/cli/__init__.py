"""The researcher's shell verbs."""
