"""The main job as a script: train SchNet on the HOMO-LUMO gap of small molecules through the simulated IPU.

    python examples/train_schnet.py --epochs 6 --out popgeo-run
    python examples/train_schnet.py --dataset qm9 --root ~/data/QM9

`--help` lists every option. The job itself, step by step, is `popgeo/__main__.py`.
"""

import sys

from popgeo.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
