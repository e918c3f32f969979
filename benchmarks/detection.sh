#!/usr/bin/env bash
# Detectors from several starts on a COCO-format dataset, and their scores side by side: see README.md.
set -euo pipefail
data=$1 out=$2
shift 2
mkdir -p "$out"

detector() { # MODEL START: trained and scored, or left alone if it was already
  local name folder again=()
  name=$(basename "${2%.safetensors}")
  folder=$out/$1-$name
  [ -f "$folder/detection.json" ] && return
  [ -f "$folder/settings.json" ] && again=(--resume)
  python -m prelax detect "$2" --data "$data" --out "$folder" --model "$1" --norm trained --score 0.01 \
    --epochs "${EPOCHS:-60}" --batch "${BATCH:-16}" --size "${SIZE:-320}" --stem "${STEM:-imagenet}" --quiet "${again[@]}"
}

for model in retinanet maskrcnn; do
  for start in "$@"; do
    while [ "$(jobs -rp | wc -l)" -ge "${LANES:-1}" ]; do wait -n || true; done
    detector "$model" "$start" &
  done
done
wait
python - "$out" <<'END'
import json, pathlib, sys

rows = [json.loads(path.read_text()) for path in sorted(pathlib.Path(sys.argv[1]).glob("*/detection.json"))]
print("| model | start | loss, first to last epoch | box AP | AP50 | AP75 | mask AP | box AR, any class | seconds |")
print("|---|---|---|---|---|---|---|---|---|")
for row in rows:
    first, last = row["curve"][0]["loss"], row["curve"][-1]["loss"]
    box, spread, mask = row["box"], row["box_standard_error"]["AP"], row["mask"]
    cells = [row["model"], pathlib.Path(row["start"]["name"]).name, f"{first:.2f} to {last:.2f}"]
    cells += [f"{box['AP']:.1f} ± {spread:.1f}", f"{box['AP50']:.1f}", f"{box['AP75']:.1f}"]
    anything, error = row["box_any_class"]["AR"], row["box_any_class_standard_error"]["AR"]
    cells += [f"{mask['AP']:.1f}" if mask else "–", f"{anything:.1f} ± {error:.1f}", f"{row['seconds']:.0f}"]
    print("| " + " | ".join(cells) + " |")
END
[ "$(find "$out" -name detection.json | wc -l)" -ge $((2 * $#)) ] || { echo "not every detector was made" >&2; exit 1; }
