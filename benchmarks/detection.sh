#!/usr/bin/env bash
# Detectors from several starts on a COCO-format dataset, and their scores side by side: see README.md.
set -euo pipefail
data=$1 out=$2
shift 2
for model in retinanet maskrcnn; do
  for start in "$@"; do
    name=$(basename "${start%.safetensors}")
    folder=$out/$model-$name
    [ -f "$folder/detection.json" ] && continue
    again=()
    [ -f "$folder/settings.json" ] && again=(--resume)
    python -m prelax detect "$start" --data "$data" --out "$folder" --model "$model" --norm trained --score 0.01 \
      --epochs "${EPOCHS:-60}" --batch "${BATCH:-16}" --size "${SIZE:-320}" --stem "${STEM:-imagenet}" --quiet "${again[@]}"
  done
done
python - "$out" <<'END'
import json, pathlib, sys

rows = [json.loads(path.read_text()) for path in sorted(pathlib.Path(sys.argv[1]).glob("*/detection.json"))]
print("| model | start | loss, first to last epoch | box AP | AP50 | AP75 | mask AP | seconds |")
print("|---|---|---|---|---|---|---|---|")
for row in rows:
    first, last = row["curve"][0]["loss"], row["curve"][-1]["loss"]
    box, spread, mask = row["box"], row["box_standard_error"]["AP"], row["mask"]
    cells = [row["model"], pathlib.Path(row["start"]["name"]).name, f"{first:.2f} to {last:.2f}"]
    cells += [f"{box['AP']:.1f} ± {spread:.1f}", f"{box['AP50']:.1f}", f"{box['AP75']:.1f}"]
    cells += [f"{mask['AP']:.1f}" if mask else "–", f"{row['seconds']:.0f}"]
    print("| " + " | ".join(cells) + " |")
END
