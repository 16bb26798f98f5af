"""What a node's owner can have done: the commands behind `fedmon node`."""
