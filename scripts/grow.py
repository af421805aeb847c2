"""Random molecular graphs of C, N, O and F, with correct valences by construction and without unstable groups.

A molecule grows from one atom or one ring: atoms and rings are attached, rings are closed, bond orders are raised. Each
step is drawn from a seeded `random.Random`. The stream of SMILES depends only on the seed.
"""

import random
from collections import deque
from collections.abc import Iterator
from itertools import combinations

from rdkit import Chem

VALENCE = {"C": 4, "N": 3, "O": 2, "F": 1}
BOND_TYPE = {1: Chem.BondType.SINGLE, 2: Chem.BondType.DOUBLE, 3: Chem.BondType.TRIPLE}

# Number of molecules per 10,000 with 8, 9, ... 29 atoms including hydrogens, as in QM9 (mean 18.0, deviation 2.9).
FIRST_SIZE = 8
SIZE_FREQUENCY = (5, 13, 37, 81, 167, 308, 517, 781, 1057, 1297, 1333, 1387, 948, 1006, 338, 486, 54, 147, 5, 27, 1, 3)
NUM_HEAVY_FREQUENCY = {3: 1, 4: 2, 5: 3, 6: 5, 7: 10, 8: 24, 9: 55}
# Some sizes have few molecules (there are only 35 nonanes), so the search ends after this number of tries.
MAX_TRIES = 3000

UNSTABLE = {
    name: Chem.MolFromSmarts(smarts)
    for name, smarts in {
        "peroxide, O-F, N-F": "[$(O-O),$(F-[#7,#8])]",
        "three heteroatoms in a row outside aromatic rings": "[#7,#8,#9]~[N,O,F]~[#7,#8,#9]",
        "heteroatom pair at a heteroatom": "[N,O,F]~[#7,#8]~[#7,#8,#9]",
        "four aromatic nitrogens in a row": "n:n:n:n",
        "hydrazine": "[NX3]-[NX3]",
        "hydroxylamine": "[NX3]-[OX2]",
        "aromatic nitrogen with a heteroatom outside the ring": "[n]-[N,O,F]",
        "nitroso": "N=O",
        "diazene with hydrogen": "[NH]=N",
        "cumulated double bonds": "*=*=*",
        "gem-diol, hemiacetal, hemiaminal": "[$([OX2H]),$([NX3;H1,H2])][CX4][$([OX2]),$([NX3]),F]",
        "enol or N-H enamine": "C=C-[$([OX2H]),$([NX3;H1,H2])]",
        "heteroatom on an alkyne": "C#C-[#7,#8,#9]",
        "imidic acid": "N=C-[OX2H]",
        "acyl fluoride": "F[CX3]=[O,N]",
        "carbamic or carbonic acid": "[#7,#8]C(=O)[OX2H]",
        "cyanate": "[#8,#9]C#N",
        "aromatic ring with a methylene": "c=C",
        "three carbonyls in a row": "C(=O)C(=O)C(=O)",
        "heteroatom pair in a small ring": "[#7,#8]1[#7,#8]*1",
        "heteroatom pair in a four-membered ring": "[#7,#8]1[#7,#8]**1",
        "double bond at a three-membered ring": "[r3]=*",
        "aromatic ring fused to a small ring": "[a;r3,r4]",
        "double bond in a four-membered ring": "[r4]=@[r4]",
        "triple bond in a ring": "*#@*",
        "two three-membered rings that share a bond": "*12**1*2",
    }.items()
}


class _Growth:
    """A growing molecular graph without hydrogens."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.elements: list[str] = []
        self.orders: dict[tuple[int, int], int] = {}
        # Drawn once per molecule, so that alkanes, amines, arenes and polyenes all occur.
        self.hetero = rng.uniform(0.0, 0.55)  # chance that an atom is not carbon
        self.unsaturation = max(0.0, rng.uniform(-0.25, 0.6))

    def free_valence(self, atom: int) -> int:
        return VALENCE[self.elements[atom]] - sum(order for pair, order in self.orders.items() if atom in pair)

    def open_atoms(self) -> list[int]:
        return [atom for atom in range(len(self.elements)) if self.free_valence(atom) > 0]

    def draw_element(self, kinds: str = "NOF", weights: tuple[int, ...] = (9, 10, 2)) -> str:
        return self.rng.choices(kinds, weights)[0] if self.rng.random() < self.hetero else "C"

    def attach_atom(self) -> bool:
        """Add an atom by a bond of order 1, 2 or 3; return False if no atom is open."""
        open_atoms = self.open_atoms()
        if self.elements and not open_atoms:
            return False
        self.elements.append(self.draw_element())
        if open_atoms:
            parent, atom = self.rng.choice(open_atoms), len(self.elements) - 1
            most = min(self.free_valence(parent), self.free_valence(atom))
            wanted = self.rng.choices((1, 2, 3), (1.0, self.unsaturation, 0.25 * self.unsaturation))[0]
            self.orders[parent, atom] = min(wanted, most)
        return True

    def attach_ring(self, num_atoms: int) -> bool:
        """Add a ring of five or six conjugated atoms, or of `num_atoms` saturated atoms, by a single bond."""
        open_atoms = self.open_atoms()
        if self.elements and not open_atoms:
            return False
        conjugated = num_atoms in (5, 6) and self.rng.random() < 2 * self.unsaturation
        ring = [
            self.draw_element("N" if conjugated else "NO", (1,) if conjugated else (1, 1)) for _ in range(num_atoms)
        ]
        if conjugated and num_atoms == 5:
            ring[0] = self.rng.choice("NO")
        first = len(self.elements)
        self.elements += ring
        for step in range(num_atoms):
            pair = sorted((first + step, first + (step + 1) % num_atoms))
            self.orders[pair[0], pair[1]] = 1 + (conjugated and step % 2 == 1)
        inside = [atom for atom in range(first, len(self.elements)) if self.free_valence(atom) > 0]
        if open_atoms and inside:
            self.orders[self.rng.choice(open_atoms), self.rng.choice(inside)] = 1
        return bool(inside) or not open_atoms

    def close_ring(self) -> None:
        """Join two open atoms two to five bonds apart; prefer large rings."""
        start = self.rng.choice(self.open_atoms() or [0])
        distance, queue = {start: 0}, deque([start])
        while queue:
            atom = queue.popleft()
            for other in (b if a == atom else a for a, b in self.orders if atom in (a, b)):
                if other not in distance:
                    distance[other] = distance[atom] + 1
                    queue.append(other)
        weights = {2: 1, 3: 1, 4: 4, 5: 4}
        ends = [atom for atom in self.open_atoms() if distance.get(atom) in weights]
        if ends and self.free_valence(start):
            end = self.rng.choices(ends, [weights[distance[atom]] for atom in ends])[0]
            self.orders[min(start, end), max(start, end)] = 1

    def raise_bonds(self) -> None:
        for a, b in self.rng.sample(sorted(self.orders), len(self.orders)):
            if min(self.free_valence(a), self.free_valence(b)) > 0 and self.rng.random() < 0.5 * self.unsaturation:
                self.orders[a, b] += 1

    def to_mol(self) -> Chem.Mol | None:
        mol = Chem.RWMol()
        for element in self.elements:
            mol.AddAtom(Chem.Atom(element))
        for (a, b), order in self.orders.items():
            mol.AddBond(a, b, BOND_TYPE[order])
        return mol if Chem.SanitizeMol(mol, catchErrors=True) == Chem.SanitizeFlags.SANITIZE_NONE else None


def grow(rng: random.Random) -> Chem.Mol | None:
    """Return a random molecule of up to nine heavy atoms, or None if no atom could be added."""
    growth = _Growth(rng)
    num_heavy = rng.choices(list(NUM_HEAVY_FREQUENCY), list(NUM_HEAVY_FREQUENCY.values()))[0]
    ring_appetite = rng.choice((0.0, 0.1, 0.25))
    while (missing := num_heavy - len(growth.elements)) > 0:
        ring_size = rng.choices((3, 4, 5, 6, 7), (1, 1, 4, 5, 1))[0]
        wants_ring = rng.random() < (ring_appetite if growth.elements else 2 * ring_appetite)
        grown = growth.attach_ring(ring_size) if wants_ring and ring_size <= missing else growth.attach_atom()
        if not grown:
            return None
    for _ in range(rng.choices((0, 1, 2), (6, 3, 1))[0]):
        growth.close_ring()
    growth.raise_bonds()
    return growth.to_mol()


def is_plausible(mol: Chem.Mol) -> bool:
    """Check whether a chemist would expect the molecule to be stable: no unstable group, no extreme strain."""
    num_carbon = sum(atom.GetSymbol() == "C" for atom in mol.GetAtoms())
    if mol.GetNumAtoms() - num_carbon > num_carbon + 1:
        return False
    if any(mol.HasSubstructMatch(pattern) for pattern in UNSTABLE.values()):
        return False
    rings = [set(ring) for ring in mol.GetRingInfo().AtomRings()]
    sizes = [len(ring) for ring in rings]
    if len(rings) > 3 or max(sizes, default=0) > 7 or sum(size < 5 for size in sizes) > 2:
        return False
    if any(mol.GetRingInfo().NumAtomRings(atom.GetIdx()) > 2 for atom in mol.GetAtoms()):
        return False
    # Bredt's rule: atoms shared by rings are tetrahedral, except for two aromatic rings with a common bond.
    for ring, other in combinations(rings, 2):
        shared = [mol.GetAtomWithIdx(atom) for atom in ring & other]
        tetrahedral = all(atom.GetHybridization() == Chem.HybridizationType.SP3 for atom in shared)
        fused_aromatic = len(shared) == 2 and all(atom.GetIsAromatic() for atom in shared)
        if not tetrahedral and not fused_aromatic:
            return False
    return True


def stream(seed: int) -> Iterator[str]:
    """Yield distinct canonical SMILES without stereochemistry and without end, with sizes as in `SIZE_FREQUENCY`."""
    rng = random.Random(seed)
    waiting: dict[int, deque[str]] = {FIRST_SIZE + i: deque() for i in range(len(SIZE_FREQUENCY))}
    seen: set[str] = set()
    while True:
        size = rng.choices(list(waiting), SIZE_FREQUENCY)[0]
        for _ in range(MAX_TRIES):
            if waiting[size]:
                yield waiting[size].popleft()
                break
            mol = grow(rng)
            if mol is None or not is_plausible(mol):
                continue
            num_atoms = mol.GetNumAtoms() + sum(atom.GetTotalNumHs() for atom in mol.GetAtoms())
            smiles = Chem.MolToSmiles(mol)
            if num_atoms in waiting and smiles not in seen:
                seen.add(smiles)
                waiting[num_atoms].append(smiles)
