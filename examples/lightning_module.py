"""Prelax-rot as a Lightning module; needs `pip install lightning` (or pytorch-lightning)."""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from prelax import augment, nets, objectives
from prelax.config import DataSettings
from prelax.data import load
from prelax.draws import Draws

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L


class PrelaxRot(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.pipeline, self.rotation = augment.preset("digits", channels=1), augment.operation("rotation")
        self.backbone = nets.backbone("resnet8", channels=1)
        self.projector, self.predictor = nets.projector(64, 128, 64, layers=2), nets.predictor(64, 32)
        self.pretext = objectives.PretextLoss(self.rotation.targets)
        self.head = nets.pretext_head(64, self.pretext.width, hidden=64)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, ids = batch  # uint8, where Lightning put them: the views are made there too
        draws = Draws(0, ids).at("epoch", self.current_epoch)
        one, two = (self.pipeline(images, draws.at("view", view)) for view in (1, 2))
        three = augment.relaxed_view(self.pipeline, one, self.rotation, images, draws.at("view", 3))
        z1, z2, z3 = (self.projector(self.backbone(view.images)) for view in (one, two, three))
        g, r31 = self.predictor, z3 - z1
        loss = objectives.sim(g(z1), z2.detach()) + objectives.sim(g(z2), z1.detach())
        loss = (
            loss
            + objectives.r2s(g(z3), g(r31), z2.detach())
            + 0.1 * self.pretext(self.head(r31), three.record.targets())
        )
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def main(epochs: int = 1) -> float:
    L.seed_everything(0, verbose=False)
    images = load(DataSettings(source="digits")).images
    loader = DataLoader(TensorDataset(images, torch.arange(len(images))), batch_size=256, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(PrelaxRot(), loader)
    return float(trainer.callback_metrics["loss"])


if __name__ == "__main__":
    main()
