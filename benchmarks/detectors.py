"""Detectors side by side on the same images: python benchmarks/detectors.py OUT.json COCO FOLDER [FOLDER ...]

FOLDER is what `prelax detect` wrote (its predictions.json is read), COCO the dataset it was scored on. For boxes, and
outlines where there are any, of each category and of any: AP, AP50, AP75 and AR, their standard errors over images
drawn anew, and what each detector has over the first of the list with the standard error of that difference. The
draws are the same for all, so images that are hard for every detector are not counted as doubt between them.
"""

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from prelax.detect import average_precision, read_coco
from prelax.detect.score import REDRAWN, redrawn


def found(folder: Path) -> list[dict[str, Any]]:
    """The predictions of a detection run; they may be compressed."""
    packed = folder / "predictions.json.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / "predictions.json").read_bytes()
    return list(json.loads(text))


def figures(values: np.ndarray) -> dict[str, float]:
    return dict(zip(REDRAWN, (round(float(value), 3) for value in values), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("coco", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=400)
    asked = parser.parse_args()
    results = [(str(folder), found(folder)) for folder in asked.folders]
    outlines = all("segmentation" in one for _, some in results for one in some[:1])
    val = read_coco(asked.coco, "val", masks=outlines)
    rows = []
    for kind in ("box", "mask") if outlines else ("box",):
        for any_class in (False, True):
            first: np.ndarray | None = None
            for name, some in results:
                drawn = redrawn(val, some, kind, asked.draws, any_class)
                first = drawn if first is None else first
                scored = average_precision(val, some, kind, any_class)
                row = {"of": kind, "any_class": any_class, "detector": name}
                row |= {"figures": {key: scored[key] for key in REDRAWN}, "error": figures(drawn.std(axis=0, ddof=1))}
                row["over_first"] = figures((drawn - first).mean(axis=0))
                row["over_first_error"] = figures((drawn - first).std(axis=0, ddof=1))
                rows.append(row)
                of = f"{kind}{', any class' if any_class else ''}"
                cells = [f"{scored[key]:.2f} ± {row['error'][key]:.2f}" for key in ("AP", "AP50", "AR")]
                lead = [f"{row['over_first'][k]:+.2f} ± {row['over_first_error'][k]:.2f}" for k in ("AP", "AR")]
                print(f"{of:15} {name:28} " + "  ".join(cells) + "   over the first: " + "  ".join(lead), flush=True)
    asked.out.write_text(json.dumps({"coco": val.name, "draws": asked.draws, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
