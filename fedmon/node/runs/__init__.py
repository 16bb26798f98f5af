"""Runs of approved plans: confined, limited, watched, and ended for sure."""
