"""Where PopTorch's own errors have their home, for programs that import them from there."""

from popgeo.compat.poptorch.compiling import isRunningOnIpu as isCompilingWithDispatcher  # noqa: F401
from popgeo.compat.poptorch.errors import Error as Error
from popgeo.compat.poptorch.errors import RecoverableError as RecoverableError
from popgeo.compat.poptorch.errors import UnrecoverableError as UnrecoverableError
from popgeo.compat.poptorch.log import option_lines as _validateOptions  # noqa: F401  # refuses what PopART does not take
