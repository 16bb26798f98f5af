"""What keeps a plan from everything that it was not given."""
