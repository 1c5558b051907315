"""What is known of selectors, as plain values and in words."""
