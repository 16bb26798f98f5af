"""Views of an experiment: its plan, the reasons of waits, the status of a run, and its picture."""
