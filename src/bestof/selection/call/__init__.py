"""The long way of a call: a trial, or the answer of the best known alternative."""
