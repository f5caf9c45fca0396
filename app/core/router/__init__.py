"""The endpoint: from a socket to a decision, a slot, and an answer."""
