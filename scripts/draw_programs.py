"""Draw random programs: models of a few statements as runnable source, with events around the steps."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

# The beginning of each program's source.
HEADER = '''
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

def values(seed, shape, dtype=torch.float32):
    """Return distinct numbers between -2 and 2 with a distance from 0."""
    count = max(torch.Size(shape).numel(), 1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    spread = ((order + 0.37) / count * 2 - 1).reshape(shape)
    if dtype.is_complex:
        return torch.complex(spread + 0.1, values(seed + 1, shape))
    if dtype in (torch.bool, torch.int64):
        return spread > 0 if dtype == torch.bool else order.reshape(shape) % 4
    return (spread + 0.2 * spread.sign()).to(dtype)

def total(tensor):
    """Return a sum with different weights for elements, and for real and imaginary parts."""
    if tensor.is_complex():
        return total(tensor.real) + 0.7 * total(tensor.imag)
    if not tensor.is_floating_point():
        return tensor.sum() * 0.01
    flat = tensor.reshape(-1)
    return (torch.tanh(flat) * torch.linspace(0.5, 1.5, flat.numel())).mean()

def seeded(draw, seed):
    """Draw with a separate seed; the stream of random numbers is unchanged afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return draw()

class Following(torch.optim.SGD):
    """An optimizer that keeps its progress in the groups and reads a whole group at once."""
    def step(self, closure=None):
        for group in self.param_groups:
            group["d"] = group.get("d", 1.0) * 1.3
            grads = [p.grad.abs().sum() for p in group["params"] if p.grad is not None]
            group["lr"] = 0.02 * group["d"] / (1.0 + float(sum(grads)))
        return super().step(closure)
'''

# `{f}` is a real tensor, `{c}` a complex tensor, `{m}` a mask, `{i}` whole numbers, `{a}` a real or complex tensor.
_ELEMENTS = """{f}.sin() {f}.exp().log1p() {f}.tanh() {f}.sigmoid() {f}.square() {f}.abs() {f}.relu() {f}.sgn()
{f}.neg() F.gelu({f}) F.silu({f}) F.softplus({f}) F.leaky_relu({f},0.1) F.elu({f}) {f}.clamp(-0.7,0.9) {f}.cos()
{f}.atan() {f}.erf() ({f}.abs()+0.5).sqrt() ({f}.abs()+0.5).rsqrt() ({f}.abs()+1).reciprocal() ({f}.abs()+1).log()
{f}*0.5 {f}+1.5 2.5-{f} {f}+{f} {f}*{f} {f}-{f} {f}/({f}.abs()+0.5) torch.maximum({f},{f}) torch.where({m},{f},{f})
{f}.masked_fill({m},0.3) torch.addcmul({f},{f},{f},value=0.5) torch.lerp({f},{f},0.3) {f}.pow(2) {f}.pow(3)
torch.hypot({f},{f}) torch.atan2({f},{f}) {f}.clone() {f}.double().float() {f}.to(torch.bfloat16).float()
{f}.detach() torch.zeros_like({f}) torch.full_like({f},0.7)"""
_SHAPES = """{a}.t() {a}.transpose(0,-1) {a}.reshape(-1) {a}.unsqueeze(1) {a}.squeeze() {a}.flatten() {a}[0]
{a}[...,1:] {a}[::2] {a}.flip(0) {a}.roll(1,0) {a}.expand(2,*{a}.shape) torch.cat([{a},{a}]) torch.stack([{a},{a}])
{a}.repeat(2,1) {a}.narrow(0,1,2) {a}.diagonal() {a}.tril() {a}.select(-1,0) {a}.contiguous() {a}.view(-1)
{a}.movedim(0,-1) {a}.unfold(0,2,1) F.pad({f},(1,2)) {a}.index_select(0,{i}) {a}[{i}]
{a}.take_along_dim({a}.real.argsort(0),0) {a}.as_strided((2,3),(3,1))"""
_SUMS = """{f}.sum(0) {f}.sum() {f}.mean(-1) {f}.softmax(-1) {f}.log_softmax(0) {f}.cumsum(0) {f}.logsumexp(-1)
{f}.var(0) {f}.std() {f}.amax(0) {f}.max(0)[0] {f}.sort(0)[0] {f}.topk(2,0)[0] {f}.norm() {f}.prod(0) {f}.argmax(0)
{f}.median() {f}@{f}.mT {f}@{f}.transpose(-1,-2).contiguous() torch.einsum('ij,kj->ik',{f},{f})
F.layer_norm({f},{f}.shape[-1:]) torch.zeros(4,*{f}.shape[1:]).index_add(0,{i},{f}[{i}])
torch.zeros_like({f}).scatter_add(0,{f}.argsort(0),{f}) torch.cdist({f},{f}) F.normalize({f},dim=-1)
F.cosine_similarity({f},{f},dim=0) torch.cov({f}) {f}.var_mean(0)[1] F.batch_norm({f},None,None,training=True)
F.conv1d({f}.unsqueeze(0),{f}[None,:,:3]) F.mse_loss({f},{f}) {f}.histc(4).detach()
F.scaled_dot_product_attention({f}[None],{f}[None],{f}[None])[0]
torch.linalg.inv({f}@{f}.mT+3*torch.eye({f}.shape[0]))"""
_COMPLEX = """{c}.conj() {c}.mH {c}*{c} {c}*{c}.conj() {c}+{f} {c}.exp() {c}.abs() {c}.angle() {c}.real {c}.imag
{c}.conj().imag torch.fft.fft({a}) torch.fft.ifft({a}) torch.fft.rfft({f}) torch.fft.irfft({c}) torch.fft.ihfft({f})
torch.fft.hfft({c}) {c}@{c}.mH torch.view_as_real({c}.resolve_conj()) torch.polar({f}.abs(),{f})
torch.complex({f},{f}) {c}.sgn() {c}.sum(0).conj() {c}.conj().clone() {c}.reciprocal() torch.vdot({c}[0],{c}[1])
torch.einsum('ij,kj->ik',{c},{c}.conj()) {c}.conj().mT[0]"""
_OTHERS = """{f}>0.1 {f}.isfinite() {m}&{m} ~{m} {m}.any(0) {f}<={f} {i}+1 {i}%3 {m}.cumsum(0) {i}.float()
torch.arange(6)%2==0 F.dropout({f},0.4) torch.rand_like({f}) torch.randn({f}.shape)
{f}*torch.bernoulli({f}.sigmoid().detach()) seeded(lambda:F.dropout({f},0.5),3) checkpoint(lambda
t:F.dropout(t*self.w0.mean(),0.4).tanh(),{f},use_reentrant=False) checkpoint(lambda
t:(t*self.w1.mean()).abs(),{c},use_reentrant=False) {f}[torch.eye({f}.shape[0],dtype=torch.bool)[0]]
torch.randperm(4) torch.nn.functional.one_hot({i},5) {f}[:,torch.arange({f}.shape[1])%2==0] {f}[{m}[:,0]]"""
_WRITES = """{f}.mul_(1.5) {a}.add_(0.25) {f}.relu_() {a}[0]=0.5 {f}[{m}]=0.3 {f}.t().sin_()
{f}.masked_fill_({m},0.1) {c}.conj().mul_({c}) {c}.real.add_(1) {a}.copy_({a}) {f}.index_add_(0,{i},{f}[{i}])
{f}[1:]+=1 {f}.view(-1)[::3]=2 {f}.neg_() {c}.conj_physical_() self.b0.mul_(0.9).add_({f}.mean().detach()*0.1)
self.b0=self.b0+0.1 x.add_(0.1) {f}.clamp_(-0.8,0.8) {f}.transpose(0,1).mul_(2) {f}.fill_diagonal_(0.5)
{f}.unsqueeze_(0) {f}.zero_() {f}.addcmul_({f},{f}) {f}.exponential_() {f}.uniform_() {f}.data.mul_(0.5)"""
_SEVERAL = """torch.chunk({a},2,0) torch.split({a},2,-1) torch.unbind({a}) {f}.max(0) torch.linalg.qr({f})
torch.var_mean({f},0) torch.sort({f},0) torch.meshgrid({f}[0],{f}[1],indexing='ij') torch.frexp({f}.detach())
torch.linalg.eigh({f}@{f}.mT)"""
FORMS = [(kind, form) for kind, text in (
    ("=", _ELEMENTS), ("=", _ELEMENTS), ("=", _SHAPES), ("=", _SUMS), ("=", _COMPLEX), ("=", _OTHERS), ("", _WRITES),
    ("*", _SEVERAL)) for form in text.split()]  # fmt: skip

OPTIMIZERS = (
    "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", "torch.optim.Adam(model.parameters(), lr=0.02)",
    "torch.optim.AdamW(model.parameters(), lr=0.02)", "torch.optim.RMSprop(model.parameters(), lr=0.01)",
    "torch.optim.Adagrad(model.parameters(), lr=0.05)", "Following(model.parameters(), lr=0.02)",
)  # fmt: skip
BEFORE = (
    "model.w0.register_hook(lambda g: g * 0.5)", "model.w0.register_hook(lambda g: g * (g > 0))",
    "model.w0.register_post_accumulate_grad_hook(lambda p: [p.grad.mul_(0.5)] and None)",
    "optimizer.register_step_pre_hook(lambda *of_a_step: [model.w0.grad.zero_()] and None)",
    "optimizer.register_step_post_hook(lambda *of_a_step: [model.w0.data.mul_(0.9)] and None)",
    "model.w1.requires_grad_(False)",
)  # fmt: skip
AFTER = (
    "model.w0.requires_grad_(False)", "model.w0.register_hook(lambda g: g * 0.5)",
    "model.w0.data = model.w0.data * 0.5", "optimizer.param_groups[0]['lr'] *= 0.5",
    "model.b0 = model.b0 * 2", "model.scale = torch.tensor(0.5)",
    "model.register_forward_hook(lambda m, a, out: (out[0] * 2, *out[1:]))",
    "model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()})",
)  # fmt: skip


_MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w0 = nn.Parameter(values(1, (4, 6)))
        self.w1 = nn.Parameter(values(2, (4, 6), torch.complex64))
        self.register_buffer("b0", values(3, (4, 6)))
        self.scale = torch.tensor(1.0)

    def forward(self, x, z, mask, index):
        {body}
        loss = sum([{parts}]) * self.scale
        return (loss{results})

def run(compile=None, nudge=0.0):
    # Call the model, or compile(model, optimizer), three times; return all outputs, inputs and states.
    torch.manual_seed(5)
    model, seen = Model(), []
    optimizer = {optimizer}
    {before}
    step = compile(model, optimizer) if compile else model
    for call in range(3):
        given = [values(7 * call + 11, (4, 6)), values(7 * call + 13, (4, 6), torch.complex64)]
        given = [tensor * (1 + nudge) for tensor in given]
        given += [values(7 * call + 15, (4, 6), torch.bool), values(7 * call + 16, (5,), torch.int64)]
        if optimizer is not None and not compile:
            optimizer.zero_grad()
        made = step(*given)
        made = made if isinstance(made, tuple) else (made,)
        if optimizer is not None and not compile:
            made[0].backward()
            optimizer.step()
        seen += [t.detach().clone() for t in (*made, *given, *model.state_dict().values())]
        if call == 0:
            {after}
    return seen

if __name__ == "__main__":
    import popgeo
    compile = popgeo.compile_step if {trains} else lambda model, optimizer: popgeo.compile_forward(model)
    for number, (eager, compiled) in enumerate(zip(run(), run(compile))):
        if not torch.allclose(eager, compiled, rtol=1e-3, atol=1e-4, equal_nan=True):
            print(f"{{number}} differs:", eager, compiled, sep="\\n")
"""


@dataclass(frozen=True)
class Program:
    """A model of a few statements, and the events around its steps.

    Attributes:
        statements: Lines of the forward pass.
        results: Names of the values returned with the loss.
        optimizer: Expression of the optimizer; "None" for a forward pass only.
        before: Statement before the step is compiled.
        after: Statement after the first call.
    """

    statements: tuple[str, ...]
    results: tuple[str, ...] = ()
    optimizer: str = "None"
    before: str = "pass"
    after: str = "pass"

    @property
    def source(self) -> str:
        """Return the model and `run(compile)` as a complete script."""
        return HEADER + _MODEL.format(
            body="\n        ".join(self.statements) or "pass",
            parts=", ".join(f"total({name})" for name in (*self.results, "self.w0", "self.w1")),
            results="".join(f", {name}" for name in self.results) or ",",
            optimizer=self.optimizer, before=self.before, after=self.after, trains=self.optimizer != "None",
        )  # fmt: skip

    def smaller(self) -> list["Program"]:
        """Return the programs without one part, or with an input in place of a statement's result."""
        found = [replace(self, before="pass"), replace(self, after="pass")]
        found += [replace(self, results=tuple(name for name in self.results if name != gone)) for gone in self.results]
        for index, line in enumerate(self.statements):
            before, rest = self.statements[:index], self.statements[index + 1 :]
            made = line.partition(" = ")[0].split(", ")
            found.append(replace(self, statements=before + rest, results=tuple(set(self.results) - set(made))))
            if len(made) == 1 and " = " in line and line not in (f"{made[0]} = {start}" for start in STARTS):
                found += [replace(self, statements=(*before, f"{made[0]} = {start}", *rest)) for start in STARTS]
        return [one for one in dict.fromkeys(found) if one != self]


STARTS = ("x * self.w0", "z * self.w1", "mask", "index")


def draw(seed: int, situations: bool = True) -> Program:
    """Draw a program of a few statements that all run in eager code.

    Args:
        seed: Seed of all random choices.
        situations: Whether to draw events around the steps, such as hooks and changes between two calls.
    """
    chance, env = random.Random(seed), dict[str, Any]()
    exec(Program(()).source, env)
    scope = {"self": env["Model"](), "x": env["values"](11, (4, 6)), "z": env["values"](13, (4, 6), torch.complex64)}
    scope |= {"mask": env["values"](15, (4, 6), torch.bool), "index": env["values"](16, (5,), torch.int64)}
    statements = ["v0 = x * self.w0", "v1 = z * self.w1"]
    for line in statements:
        exec(line, env, scope)
    for _ in range(60):
        if len(statements) == chance.randint(5, 14):
            break
        drawn = _statement(chance, scope, len(scope))
        if drawn is not None and _runs(drawn, env, scope):
            statements.append(drawn)
    made = [name for name in scope if name.startswith("v")]
    results = tuple(sorted(chance.sample(made, min(len(made), chance.randint(1, 4)))))
    program = Program(tuple(statements), results)
    if chance.random() < 0.7:
        program = replace(program, optimizer=chance.choice(OPTIMIZERS))
        if situations and chance.random() < 0.4:
            program = replace(program, before=chance.choice(BEFORE))
    if situations and chance.random() < 0.3:
        after = [line for line in AFTER if program.optimizer != "None" or "optimizer" not in line]
        program = replace(program, after=chance.choice(after))
    return program


def _statement(chance: random.Random, scope: Mapping[str, Any], number: int) -> str | None:
    """Draw a statement with tensors of the right kinds; None if a kind is missing."""
    kind, form = chance.choice(FORMS)
    names: dict[str, list[str]] = {"f": [], "c": [], "m": [], "i": [], "a": []}
    for name, tensor in scope.items():
        if isinstance(tensor, torch.Tensor):
            real = "f" if tensor.dtype == torch.float32 else "c" if tensor.is_complex() else ""
            one = real or ("m" if tensor.dtype == torch.bool else "i")
            for key in (one, "a") if real else (one,):
                names[key].append(name)
    for key, known in names.items():
        while f"{{{key}}}" in form:
            if not known:
                return None
            late = known[-3:] if chance.random() < 0.6 else known
            form = form.replace(f"{{{key}}}", chance.choice(late), form.count(f"{{{key}}}") if "lambda" in form else 1)
    return {"=": f"v{number} = {form}", "*": f"v{number}, v{number}b, *_ = {form}", "": form}[kind]


def _runs(line: str, env: dict[str, Any], scope: dict[str, Any]) -> bool:
    """Run a statement in the scope; return False, and keep the scope, if it raises or leaves unsuitable tensors."""
    tried = {name: value for name, value in scope.items() if name != "_"}
    try:
        exec(line, env | tried, tried)
        if not all(_is_kept(value) for name, value in tried.items() if name.startswith("v")):
            return False
    except Exception:
        return False
    scope.clear()
    scope.update({name: value for name, value in tried.items() if name != "_"})
    return True


def _is_kept(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and 0 < value.numel() < 2000 and bool(torch.isfinite(value).all())
