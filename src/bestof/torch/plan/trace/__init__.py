"""From a model to a graph of operators that change nothing."""
