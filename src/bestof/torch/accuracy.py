"""The levels of accuracy. They are defined where the command line finds them without torch."""

from bestof.accuracy import ACCURACIES, DEFAULT_ACCURACY, Accuracy, allows, parse_accuracy

__all__ = ["ACCURACIES", "DEFAULT_ACCURACY", "Accuracy", "allows", "parse_accuracy"]
