"""Where PopTorch's own errors have their home, for programs that import them from there."""

from popgeo.compat.poptorch.errors import Error as Error
from popgeo.compat.poptorch.errors import RecoverableError as RecoverableError
from popgeo.compat.poptorch.errors import UnrecoverableError as UnrecoverableError
