"""Plan Hugging Face's GPT-2 over many IPUs without allocating a weight, and show the pipeline's timeline.

    pip install transformers
    python examples/gpt2_on_ipus.py  # GPT-2 medium, 8 stages x 2 replicas
    python examples/gpt2_on_ipus.py --layers 40 --width 5120 --heads 40 --sequence 2048 --stages 42  # 13 billion

Published: GPT-2 medium, sequence 1,024, on 16 IPUs (2 replicas of 8, accumulation 256) trains 101.8 samples/s, with
dropout and the same placement of layers as in `benchmarks/cost_model_validation.py --systems`. No constant was fitted
to this figure.
"""

import argparse
import resource
import time

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, logging

from popgeo import ipu
from popgeo.command_line import OneLineParser, run


class LanguageModel(nn.Module):
    """GPT-2 with the loss of predicting each next token."""

    def __init__(self, gpt: GPT2LMHeadModel) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, tokens: Tensor) -> Tensor:
        return self.gpt(tokens, labels=tokens, use_cache=False).loss


def parse() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=1024, help="tokens per sample")
    parser.add_argument("--stages", type=int, default=8, help="pipeline stages, one per IPU")
    parser.add_argument("--replicas", type=int, default=2, help="parallel pipelines")
    parser.add_argument("--accumulate", type=int, default=256, help="samples per pipeline between two updates")
    parser.add_argument("--machine", choices=("bow", "gc200"), default="gc200")
    parser.add_argument("--float32", action="store_true", help="weights in float32 instead of float16")
    given = parser.parse_args()
    if given.width % given.heads:
        parser.error(f"--width {given.width} does not divide into --heads {given.heads}")
    return given


def main() -> None:
    start = time.perf_counter()
    given = parse()
    logging.set_verbosity_error()
    size = {"n_layer": given.layers, "n_embd": given.width, "n_head": given.heads, "n_positions": given.sequence}
    with torch.device("meta"):
        gpt = GPT2LMHeadModel(GPT2Config(**size, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0))
    model = LanguageModel(gpt).to(torch.float32 if given.float32 else torch.float16)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:,.0f} million weights, not allocated", flush=True)
    target = ipu.IpuTarget.bow() if given.machine == "bow" else ipu.IpuTarget.gc200()
    options = ipu.Options(
        target=target, gradient_accumulation=given.accumulate, replication_factor=given.replicas, strict=False
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.zeros(1, given.sequence, dtype=torch.long)
    plan = ipu.pipeline(model, [tokens], options, optimizer, stages=given.stages, recompute=True)
    print(plan)
    print(f"{plan.micro_batches_per_second:,.1f} samples/s modelled on {plan.num_ipus * plan.replicas} IPUs")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # kB
    print(f"{time.perf_counter() - start:.0f} s and {peak:.1f} GB of this computer's memory at most")


if __name__ == "__main__":
    run(main)
