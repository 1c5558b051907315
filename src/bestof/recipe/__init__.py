"""Finds, for one script, the settings that make its whole step faster, and applies them.

- `settings`: what can be set; `apply` sets it in a process.
- `parts`: which settings are tried, one after the other.
- `step_clock`: finds the steps of an unchanged script, inside of its process.
- `contestant`: a process that runs the script, and stops between turns of some steps.
- `search`: compares two contestants in turn, and keeps what is confirmed faster.
- `recipe`: the recipe, as JSON that a person can review.
"""
