"""`fedmon doctor`: finds out why something does not work, and says what to do about it."""
