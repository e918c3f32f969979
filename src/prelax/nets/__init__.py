"""Backbone, projector F, predictor G, pretext heads H, and the target: stop-gradient or moving average."""

from prelax.names import BACKBONES
from prelax.nets.backbones import ResNet8, backbone, check_backbone_name, width_of
from prelax.nets.heads import MLP, predictor, pretext_head, projector, projector_of
from prelax.nets.network import Encoder, Network
from prelax.nets.norm import ViewNorm2d, keeps_views_apart, normalise_views, set_views

__all__ = [
    "BACKBONES",
    "MLP",
    "Encoder",
    "Network",
    "ResNet8",
    "ViewNorm2d",
    "backbone",
    "check_backbone_name",
    "keeps_views_apart",
    "normalise_views",
    "predictor",
    "pretext_head",
    "projector",
    "projector_of",
    "set_views",
    "width_of",
]
