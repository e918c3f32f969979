"""Fine-tuning: a copy of the backbone and a linear head trained together on labels, all of them or a few."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prelax.collectives import alone
from prelax.config import EvaluateSettings
from prelax.draws import Draws
from prelax.evaluate.features import extract
from prelax.evaluate.knn import accuracy
from prelax.evaluate.labels import few
from prelax.evaluate.linear import Score
from prelax.evaluate.probe import Outcome
from prelax.evaluate.subject import BATCH, Subject, near
from prelax.nets.backbones import channels_last, width_of


@dataclass(frozen=True)
class Tuning:
    """How a network is fine-tuned: SGD with Nesterov momentum, cosine to zero, crops and flips, no weight decay."""

    lr: float = 0.05
    epochs: int = 30
    batch_size: int = 256
    momentum: float = 0.9
    least_steps: int = 300  # few labels: epochs are added until there are so many steps

    def epochs_for(self, images: int) -> int:
        steps = math.ceil(images / min(self.batch_size, images))
        return max(self.epochs, math.ceil(self.least_steps / steps))


@alone()
def tune(subject: Subject, tuning: Tuning, seed: int) -> tuple[nn.Module, nn.Linear]:
    """A copy of the backbone and its head after the last epoch; the subject's own backbone is not touched."""
    device = subject.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)  # for the dropout of a backbone that has some
        return _tuned(subject, tuning, seed, device)


def _tuned(subject: Subject, tuning: Tuning, seed: int, device: torch.device) -> tuple[nn.Module, nn.Linear]:
    net = copy.deepcopy(subject.backbone).to(device).requires_grad_(True).train()
    head = nn.Linear(width_of(net), subject.classes, device=device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    weights = [*net.parameters(), *head.parameters()]
    optimiser = torch.optim.SGD(weights, tuning.lr, tuning.momentum, nesterov=True)
    cuda = device.type == "cuda"
    if cuda:
        channels_last(net)
    pixels, labels = near(subject.train.images, device), subject.labels("train")
    count = len(pixels)
    batch = min(tuning.batch_size, count)
    epochs = tuning.epochs_for(count)
    steps, step = math.ceil(count / batch) * epochs, 0
    draws = Draws(seed, rows=count, device=device).at("finetune")
    for epoch in range(epochs):
        subject.tell(f"epoch {epoch + 1} of {epochs}")
        order = draws.at("order", epoch).bits("rank")[:, 0].argsort()
        for index in order.split(batch):
            optimiser.param_groups[0]["lr"] = tuning.lr * 0.5 * (1.0 + math.cos(math.pi * step / steps))
            step += 1
            if len(index) < 2:  # BatchNorm cannot train on one image
                continue
            taken = pixels[index.to(pixels.device)].to(device)
            images = subject.crops(taken, Draws(seed, index, device).at("finetune", "crops", epoch)).images
            if cuda:
                images = images.contiguous(memory_format=torch.channels_last)
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
                features = net(images)
            F.cross_entropy(head(features.float()), labels[index]).backward()
            optimiser.step()
    return net.eval(), head.eval()


@torch.no_grad()
def tuned_accuracy(subject: Subject, net: nn.Module, head: nn.Linear) -> float:
    """Percent of test images a fine-tuned network gets right."""
    features = extract(net, subject.test.images, subject.preprocess, device=subject.device, batch_size=BATCH)
    predicted: Tensor = head(features).argmax(1)
    return accuracy(predicted, subject.labels("test"))


def finetune(
    subject: Subject,
    settings: EvaluateSettings,
    seeds: Sequence[int],
    share: float = 1.0,
    tuning: Tuning | None = None,
) -> Outcome:
    """Accuracy after fine-tuning on a share of the labels, over seeds (which labels, their order, their crops)."""
    tuning = tuning or Tuning()
    found, count = [], len(subject.train)
    for seed in seeds:
        chosen = subject
        if share < 1.0:
            chosen = subject.only(few(subject.labels("train"), share=share, seed=seed))
        count = len(chosen.train)
        found.append(tuned_accuracy(subject, *tune(chosen, tuning, seed)))
    said = {
        **asdict(tuning),
        "epochs": tuning.epochs_for(count),
        "share": share,
        "labels": count,
        "reported": "the last epoch",
    }
    return Outcome(Score(found), said, list(seeds))
