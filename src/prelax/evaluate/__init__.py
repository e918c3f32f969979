"""Proof: what a frozen backbone is worth, beside what random weights are worth."""

from prelax.evaluate.curves import diagnose
from prelax.evaluate.effects import effects
from prelax.evaluate.embed import embed
from prelax.evaluate.features import extract, fingerprint, frozen
from prelax.evaluate.knn import knn_accuracy, knn_predict
from prelax.evaluate.protocols import evaluate
from prelax.evaluate.relaxing import candidates
from prelax.evaluate.residual import probe_residual
from prelax.evaluate.retrieval import nearest, precision_at, search
from prelax.evaluate.transfer import transfer
from prelax.names import PROTOCOLS

__all__ = [
    "PROTOCOLS",
    "candidates",
    "diagnose",
    "effects",
    "embed",
    "evaluate",
    "extract",
    "fingerprint",
    "frozen",
    "knn_accuracy",
    "knn_predict",
    "nearest",
    "precision_at",
    "probe_residual",
    "search",
    "transfer",
]
