"""Image representations learnt without labels, from augmentations that keep meaning and those that change it."""

__version__ = "0.1.0"
