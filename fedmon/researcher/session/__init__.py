"""One connected researcher process: connection, inbox and callbacks."""
