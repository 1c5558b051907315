"""Do ranks that bestof tunes train to the same loss? Four networks on 1, 2 and 4 ranks.

    python benchmarks/rank_losses.py [--models mlp vgg16 resnet34 transformer] [--ranks 1 2 4]

`examples/train_ranks.py` trains each network for 100 steps of the same samples, as it is and under
`bestof run`. The table shows the last losses and their distance, which stays below 1e-3. Where it
does not, PyTorch trains once more from weights of which one is the next float32 number. If that
loss is as far away, the training itself magnifies rounding errors. So do VGG16, which has no norm,
and ResNet34 at a rate of 0.01. Their rates here are lower; `--rate` sets one for all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bestof.profile.recording.recorder import processor_name

EXAMPLES = Path(__file__).parent.parent / "examples"
MODELS = ("mlp", "vgg16", "resnet34", "transformer")
RATES = {"vgg16": 1e-4, "resnet34": 3e-4}
RATE = 0.01  # of the others
LIMIT = 1e-3
NUDGED = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import torch, train_ranks
build = train_ranks.build
def nudged(*arguments):
    model = build(*arguments)
    with torch.no_grad():
        weight = next(model.parameters()).view(-1)
        weight[0] = torch.nextafter(weight[0], torch.tensor(torch.inf))
    return model
train_ranks.build = nudged
train_ranks.main()
"""


def last_loss(how: str, model: str, ranks: int, options: Namespace) -> float:
    """Train and return the last loss. how: "plain", "tuned" or "nudged"."""
    with tempfile.TemporaryDirectory() as folder:
        script = EXAMPLES / "train_ranks.py"
        if how == "nudged":
            script = Path(folder, "nudged.py")
            script.write_text(NUDGED, encoding="utf-8")
        losses = Path(folder, "losses")
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        tuned = ["-m", "bestof", "run"] if how == "tuned" else []
        command = [sys.executable, *launcher, *tuned, str(script), "--model", model]
        rate = options.rate or RATES.get(model, RATE)
        sizes = ["--width", str(options.width), "--batch", str(options.batch // ranks)]
        told = [*sizes, "--rate", str(rate), "--losses", str(losses)]
        environment = {**os.environ, "BESTOF_STORE": "off", "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *told], env=environment, check=True, capture_output=True)
        return float(losses.read_text(encoding="utf-8").split()[-1])


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--ranks", nargs="+", type=int, default=(1, 2, 4))
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32, help="samples of a step of all ranks")
    parser.add_argument("--rate", type=float, help="learning rate of all networks")
    options = parser.parse_args()
    print(f"{processor_name()}; width {options.width}, {options.batch} samples, 100 steps\n")
    print("| network | ranks | PyTorch | tuned | distance | distance of a nudged PyTorch |")
    print("|---|---|---|---|---|---|")
    missed = False
    for model in options.models:
        for ranks in options.ranks:
            plain, tuned = (last_loss(how, model, ranks, options) for how in ("plain", "tuned"))
            apart = abs(plain - tuned)
            nudged = ""
            if not apart <= LIMIT:
                by_itself = abs(plain - last_loss("nudged", model, ranks, options))
                nudged = f"{by_itself:.1e}"
                missed |= not apart <= max(LIMIT, 3 * by_itself)
            row = f"| {model} | {ranks} | {plain:.5f} | {tuned:.5f} | {apart:.1e} | {nudged} |"
            print(row, flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
