"""The main job as a script: train SchNet on the HOMO-LUMO gap of small molecules through the simulated IPU.

    python examples/train_schnet.py --epochs 6 --out popgeo-run
    python examples/train_schnet.py --dataset qm9 --root ~/data/QM9

`--help` lists every option. The job itself, step by step, is `popgeo/demo.py`.
"""

from popgeo.__main__ import main
from popgeo.command_line import run

if __name__ == "__main__":
    run(main)
