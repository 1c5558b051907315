"""The program of a plan: its steps, tuned and bound."""
