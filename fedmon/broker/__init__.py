"""The broker's side: engines that carry the messages, their users, and the file repository."""
