"""What can be said of an experiment without running it: its plan, why it waits, how a run stands, and its picture."""
