"""Proof: what a frozen backbone is worth, beside what random weights are worth."""

from prelax.evaluate.features import extract, fingerprint, frozen
from prelax.evaluate.knn import knn_accuracy, knn_predict

__all__ = ["extract", "fingerprint", "frozen", "knn_accuracy", "knn_predict"]
