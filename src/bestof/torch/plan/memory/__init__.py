"""Where the values of a call lie."""
