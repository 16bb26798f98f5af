"""Hardware and software events, counted by the ``perf`` program that a thread of ours watches."""
