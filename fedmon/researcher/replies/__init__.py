"""The durable queue of replies that nobody has taken yet."""
