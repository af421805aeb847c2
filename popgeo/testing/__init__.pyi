"""The public names: each is imported when it is first used."""

from popgeo.testing.claims import BrokenError as BrokenError
from popgeo.testing.claims import Case as Case
from popgeo.testing.claims import NotTriedError as NotTriedError
from popgeo.testing.claims import SubjectKind as SubjectKind
from popgeo.testing.claims import claim as claim
from popgeo.testing.compile_claims import check_static_capture as check_static_capture
from popgeo.testing.conformance import check_conformance as check_conformance
from popgeo.testing.invariance_claims import check_padding_invariance as check_padding_invariance
from popgeo.testing.model_subject import ModelSubject as ModelSubject
