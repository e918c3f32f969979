"""Prelax on top of lightly's SimSiam: its heads and loss, our views and residual; needs `pip install lightly`."""

import torch
from lightly.loss import NegativeCosineSimilarity
from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead
from torch import nn

from prelax import augment, nets, objectives
from prelax.config import DataSettings
from prelax.data import load
from prelax.draws import Draws


def main(steps: int = 8) -> float:
    torch.manual_seed(0)
    images = load(DataSettings(source="digits")).images
    pipeline, rotation = augment.preset("digits", channels=1), augment.operation("rotation")
    backbone = nets.backbone("resnet8", channels=1)
    projection, prediction = SimSiamProjectionHead(64, 128, 64), SimSiamPredictionHead(64, 32, 64)
    pretext = objectives.PretextLoss(rotation.targets)
    head = nets.pretext_head(64, pretext.width, hidden=64)
    similarity = NegativeCosineSimilarity()  # their scale: a quarter of two squared distances, less a constant
    net = nn.ModuleList([backbone, projection, prediction, head])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    for step in range(steps):
        batch = images[torch.randperm(len(images))[:256]]
        one, two = pipeline(batch, 2 * step), pipeline(batch, 2 * step + 1)  # seeds
        three = augment.relaxed_view(pipeline, one, rotation, batch, Draws(step, len(batch)))
        z1, z2, z3 = (projection(backbone(view.images)) for view in (one, two, three))
        r31 = z3 - z1
        loss = 0.5 * (similarity(prediction(z1), z2.detach()) + similarity(prediction(z2), z1.detach()))
        relaxed = objectives.r2s(prediction(z3), prediction(r31), z2.detach())
        loss = loss + 0.25 * (relaxed + 0.1 * pretext(head(r31), three.record.targets()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss after {steps} steps: {loss.item():.3f}")
    return loss.item()


if __name__ == "__main__":
    main()
