"""What `fedmon watch` shows: the newest values of every stream, in groups, the worst first."""
