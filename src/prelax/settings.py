"""The tree of settings: every key with its type, its bounds, its default and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from prelax.data.ranges import ranges
from prelax.errors import readable


class Section(BaseModel):
    """A part of the tree; unknown keys and wrong types are refused, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSettings(Section):
    source: str = Field("digits", description="a name of `prelax list datasets`")
    root: Path | None = Field(
        None, description="where the files are; of folder: or a .npy, .npz or .h5 file of all images"
    )
    test_root: Path | None = Field(None, description="folder: a second tree of labelled images to evaluate on")
    download: bool = Field(False, description="fetch the files of cifar10 and cifar100 when they are missing")
    shards: str | None = Field(
        None, description="train on WebDataset tar shards: photos-{000..099}.tar, a URL, or pipe:COMMAND; several by ::"
    )
    mix: int = Field(8, ge=1, le=1024, description="shards: a batch is drawn from this many of them at a time")
    image_size: int | None = Field(None, ge=4, le=4096, description="side in pixels images are decoded to; by source")
    channels: int | None = Field(None, ge=1, le=64, description="1 grey, 3 colour; by source")
    range: str | None = Field(
        None, description="what becomes 0 and 255 of images deeper than 8 bits: LOW,HIGH; default as the images are"
    )
    labels: Path | None = Field(None, description="folder: a CSV of path,label; of an array of images: one of labels")
    test_fraction: float = Field(0.1, ge=0.0, lt=1.0, description="folder: share held out when there is no test_root")
    limit: int | None = Field(None, ge=1, le=10**12, description="use only this many training images (a quick pass)")
    cache: Path | None = Field(None, description="folder for decoded pixels; default ~/.cache/prelax")
    store: Literal["auto", "device", "host", "disk"] = Field("auto", description="where decoded pixels stay")
    workers: int | None = Field(None, ge=0, le=256, description="processes that decode; default all cores")

    @field_validator("range")
    @classmethod
    def _range_is_two_numbers(cls, value: str | None) -> str | None:
        if value is not None and not ranges(value):
            raise ValueError("leave it out (null) where the images are to decide")
        return value

    @property
    def label(self) -> str:
        """What results on it are called: the source, or a folder's own name."""
        named = self.root.expanduser().resolve().name if self.source == "folder" and self.root is not None else ""
        return readable(named) or self.source


class AugmentSettings(Section):
    preset: str = Field(
        "auto", description="a preset of `prelax list augmentations`, or MODULE:NAME; auto: by source and size"
    )
    size: int | None = Field(None, ge=4, le=2048, description="side of a view in pixels; default by preset")
    area_from: float | None = Field(None, gt=0.0, le=1.0, description="least share of the image in a crop; by preset")
    area_to: float | None = Field(None, gt=0.0, le=1.0, description="the greatest")
    colour: float | None = Field(
        None, ge=0.0, le=5.0, description="strength of the colour jitter, in multiples of the preset's; 0: none"
    )
    flip: float | None = Field(None, ge=0.0, le=1.0, description="how often an image is mirrored; by preset, 0: never")
    grey: float | None = Field(None, ge=0.0, le=1.0, description="the same of greyscale")
    blur: float | None = Field(None, ge=0.0, le=1.0, description="the same of blur, in both views")
    solarise: float | None = Field(None, ge=0.0, le=1.0, description="the same of solarisation, in both views")
    small_size: int | None = Field(
        None, ge=4, le=2048, description="side of small views (essl, prelax-turns, -crops); default half a view"
    )
    small_area_from: float | None = Field(
        None, gt=0.0, le=1.0, description="least share of the image in a small crop; default as in the other views"
    )
    small_area_to: float | None = Field(None, gt=0.0, le=1.0, description="the greatest (essl, prelax-crops)")
    compile: Literal["auto", "always", "never"] = Field("auto", description="fuse with torch.compile; auto: on CUDA")


class ModelSettings(Section):
    backbone: str = Field("resnet18", description="resnet8, resnet18, resnet34, resnet50, timm:NAME or MODULE:CLASS")
    stem: Literal["auto", "small", "imagenet"] = Field("auto", description="small: 3x3 stride 1, no max-pool (32 px)")
    weights: str | None = Field(
        None, description="what the backbone begins with: a run folder, a file of weights, or pretrained (published)"
    )
    init: Literal["fan-out", "torch"] = Field(
        "fan-out", description="of convolutions: torchvision's ResNets', or nn.Conv2d's own, 2.4 times smaller"
    )
    projector_layers: int = Field(3, ge=1, le=8, description="layers of the projector F ends with")
    projector_hidden: int = Field(2048, ge=1, le=65536)
    projector_dim: int = Field(2048, ge=2, le=65536, description="size of an embedding z")
    projector_last_norm: bool = Field(True, description="BatchNorm without affine after the last layer (SimSiam)")
    predictor_hidden: int = Field(512, ge=1, le=65536, description="width inside the predictor G")
    head_layers: int = Field(2, ge=1, le=4, description="depth of the pretext heads H; 1 is linear")
    head_hidden: int = Field(512, ge=1, le=65536)


class MethodSettings(Section):
    name: str = Field("prelax-all", description="a line of `prelax list methods`, or MODULE:NAME")
    base: Literal["simsiam", "byol", "simclr"] = Field("simsiam", description="what Prelax is built on")
    alpha: float = Field(1.0, ge=0.0, le=1.0, description="R2S: 0 exact alignment, 1 identity alignment")
    alpha2: float | None = Field(None, ge=0.0, le=1.0, description="the same for R3S; default alpha")
    beta: float = Field(1.0, ge=0.0, le=1e4, description="weight of the similarity constraint")
    gamma: float = Field(0.1, ge=0.0, le=1e4, description="weight of the predictive loss PL")
    gamma2: float | None = Field(None, ge=0.0, le=1e4, description="the same for the relaxed view's PL; default gamma")
    gamma_end: float = Field(1.0, ge=0.0, le=1.0, description="share of gamma, gamma2 left at the end; falls by cosine")
    eta: float = Field(0.5, ge=0.0, le=1e4, description="margin: mismatch that costs nothing")
    relax: str = Field("rotation", description="the third view: of `prelax list augmentations`, or MODULE:CLASS")
    residual: Literal["raw", "normalised"] = Field("raw", description="difference of embeddings, or of unit embeddings")
    residual_gradient: Literal["full", "detach-in-g", "detach-anchor", "detach"] = Field(
        "full", description="full: the paper's letter; detach-in-g: only PL trains it; detach-anchor: not through z_j"
    )
    residual_norm: Literal["own", "shared"] = Field(
        "own", description="G(r) normalised by its own batch statistics, or by those of the views (affine: no 1/|r|)"
    )
    reverse: bool = Field(False, description="R2S with r21 in place of r12; R3S with r13 where there is no R2S")
    pl_anchor: Literal["same", "other", "none"] = Field(
        "same",
        description="RotPL reads z3 - z1 (the paper's letter), z3 - z2 (another crop, other colours), or z3 alone",
    )
    std_anchor: Literal["other", "none"] = Field("other", description="PL reads z1 - z2 (the letter), or z1 alone")
    pl_reads: Literal["embedding", "backbone"] = Field(
        "embedding", description="PL and RotPL read the residual of embeddings z (the paper's letter) or of features h"
    )
    std_reads: Literal["embedding", "backbone"] | None = Field(None, description="the same for PL; default pl_reads")
    std_tells: Literal["view", "difference"] = Field(
        "view", description="PL predicts what was drawn for view 1 (the letter), or how that differs from view 2's"
    )
    asks: str | None = Field(
        None, description="which draws PL and AugSelf ask for: crop,jitter or crop.y; all but: -flip; default all"
    )
    similarity: Literal["both", "one-way"] = Field("both", description="one-way (x2 > x1) is the paper's letter")
    pl_reduction: Literal["sum", "mean"] = Field("mean", description="over the targets of one PL")
    loss_scale: float | None = Field(
        None, gt=0.0, le=1e4, description="of the printed squared distances; default by base"
    )
    temperature: float = Field(0.5, ge=1e-3, le=1e3, description="simclr: NT-Xent")
    tau: float = Field(0.996, ge=0.0, le=1.0, description="byol: the target's decay at the start; rises to 1 by cosine")


class TrainSettings(Section):
    epochs: int = Field(800, ge=1, le=10**6)
    batch_size: int = Field(512, ge=2, le=2**20, description="images a step, over all processes")
    optimizer: Literal["sgd", "lars", "adamw", "muon"] = Field("sgd", description="muon: train.turn, the rest by sgd")
    lr: float = Field(0.03, gt=0.0, le=1e4, description="per 256 images: the rate used is lr * batch_size / 256")
    turn: float = Field(0.02, gt=0.0, le=1.0, description="muon: a matrix's step at its peak, as a share of its length")
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    weight_decay: float = Field(5e-4, ge=0.0, le=100.0, description="with muon of what it does not turn")
    decay_norms: bool = Field(True, description="whether BatchNorms and biases decay as well (never with lars)")
    warmup_epochs: float = Field(0.0, ge=0.0, description="linear from 0")
    schedule: Literal["cosine", "linear"] = Field(
        "cosine", description="how lr, and muon's turn, fall after the warm-up"
    )
    final_lr: float = Field(0.0, ge=0.0, le=1.0, description="share of lr that they end at")
    predictor_lr: Literal["constant", "cosine"] = Field(
        "constant", description="SimSiam's predictor does not decay; cosine: it falls as the rest does"
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on CUDA")
    compile: Literal["auto", "always", "never"] = Field("auto", description="auto: on CUDA")
    checkpoint_every: int = Field(
        10, ge=1, le=10**6, description="epochs between checkpoints; the last is always written"
    )
    knn_every: int = Field(0, ge=0, le=10**6, description="epochs between kNN probes; 0: none")
    watch: Literal["auto", "none", "tensorboard", "wandb"] = Field(
        "auto", description="curves beside metrics.jsonl; auto: TensorBoard where it is installed"
    )
    stop_on_collapse: bool = Field(True, description="stop when the representation has collapsed")


class EvaluateSettings(Section):
    knn_k: int = Field(200, ge=1, le=10**9, description="neighbours that vote; at most a tenth of the images do")
    knn_temperature: float = Field(0.1, ge=1e-3, le=1e3, description="a vote weighs exp(cosine / this)")
    linear: Literal["simsiam", "byol"] = Field("simsiam", description="the paper's linear protocol for this base")
    linear_view: Literal["centre", "whole"] = Field(
        "centre",
        description="linear probes see the central 7/8 of test images (SimSiam's own), or small ones whole",
    )
    probe_seeds: int = Field(1, ge=1, le=100, description="probes trained, each from a seed of its own")


class Settings(Section):
    """Everything that decides a run."""

    recipe: str = Field("custom", description="the recipe these settings began as, for the record")
    seed: int = Field(0, ge=0, lt=2**31, description="decides every random draw; also --seed")
    data: DataSettings = DataSettings()
    augment: AugmentSettings = AugmentSettings()
    model: ModelSettings = ModelSettings()
    method: MethodSettings = MethodSettings()
    train: TrainSettings = TrainSettings()
    evaluate: EvaluateSettings = EvaluateSettings()

    @model_validator(mode="after")
    def _warmup_is_shorter(self) -> Settings:
        if self.train.warmup_epochs >= self.train.epochs and self.train.warmup_epochs > 0:
            raise ValueError(
                f"train.warmup_epochs ({self.train.warmup_epochs:g}) must be under train.epochs ({self.train.epochs})"
            )
        return self
