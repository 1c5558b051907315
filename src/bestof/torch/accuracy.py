"""The levels of accuracy, under the name that the integration uses; the command line needs them without torch."""

from bestof.accuracy import ACCURACIES, DEFAULT_ACCURACY, Accuracy, allows, parse_accuracy

__all__ = ["ACCURACIES", "DEFAULT_ACCURACY", "Accuracy", "allows", "parse_accuracy"]
