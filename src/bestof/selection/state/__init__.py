"""What the process knows: searches under way, decisions, and the journal of both."""
