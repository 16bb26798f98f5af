"""`fedmon doctor`: checks with advice for each failure."""
