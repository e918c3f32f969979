"""Prelax-rot in a loop of your own: recording augmentations, the relaxed loss, a pretext head."""

import torch
from torch import nn

from prelax import augment, nets, objectives
from prelax.config import DataSettings
from prelax.data import load
from prelax.draws import Draws


def main(epochs: int = 2) -> float:
    torch.manual_seed(0)
    images = load(DataSettings(source="digits")).images  # N x 1 x 16 x 16, uint8
    pipeline = augment.preset("digits", channels=1)
    rotation = augment.operation("rotation")

    backbone = nets.backbone("resnet8", channels=1)
    projector, predictor = nets.projector(64, 128, 64, layers=2), nets.predictor(64, 32)
    pretext = objectives.PretextLoss(rotation.targets)
    head = nets.pretext_head(64, pretext.width, hidden=64)
    net = nn.ModuleList([backbone, projector, predictor, head])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    for epoch in range(epochs):
        for ids in torch.randperm(len(images)).split(256)[:-1]:
            batch, draws = images[ids], Draws(0, ids).at("epoch", epoch)
            one, two = pipeline(batch, draws.at("view", 1)), pipeline(batch, draws.at("view", 2))
            three = augment.relaxed_view(pipeline, one, rotation, batch, draws.at("view", 3))

            z1, z2, z3 = (projector(backbone(view.images)) for view in (one, two, three))
            r31 = z3 - z1  # what the rotation changed
            loss = objectives.sim(predictor(z1), z2.detach()) + objectives.sim(predictor(z2), z1.detach())
            loss = loss + objectives.r2s(predictor(z3), predictor(r31), z2.detach(), alpha=1.0)
            loss = loss + 0.1 * pretext(head(r31), three.record.targets())

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    return loss.item()


if __name__ == "__main__":
    main()
