"""The rows of an operation, chosen: what eager calls and plans share."""
