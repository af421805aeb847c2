"""The public names: each is imported when it is first used."""

from popgeo.convert.atoms import read_atoms as read_atoms
from popgeo.convert.named_tables import NamedEvents as NamedEvents
from popgeo.convert.named_tables import NamedTriples as NamedTriples
from popgeo.convert.named_tables import read_events as read_events
from popgeo.convert.named_tables import read_triples as read_triples
