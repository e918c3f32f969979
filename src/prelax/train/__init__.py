"""The loop, optimisers, schedules, checkpoints, several processes."""

from prelax.train.devices import choose_device
from prelax.train.engine import Engine
from prelax.train.muon import Muon
from prelax.train.optim import LARS, lr_schedule, tau_schedule
from prelax.train.pretrain import pretrain
from prelax.train.processes import Process, joined
from prelax.train.rank import effective_rank
from prelax.train.step import Objective, Views
from prelax.train.views import ViewMaker

__all__ = [
    "LARS",
    "Engine",
    "Muon",
    "Objective",
    "Process",
    "ViewMaker",
    "Views",
    "choose_device",
    "effective_rank",
    "joined",
    "lr_schedule",
    "pretrain",
    "tau_schedule",
]
