"""The durable queue of replies, and announcements of nodes."""
