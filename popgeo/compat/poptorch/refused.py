"""What cannot run without Graphcore's own libraries: said where a program asks for it."""

from typing import Any, NoReturn

from popgeo.compat.poptorch.errors import Error


def custom_op(inputs: Any, name: str, domain: str, domain_version: int, example_outputs: Any, **attributes: Any) -> Any:
    """An operation written in C++ against PopART.

    Raises:
        Error: always, since such code is compiled for an IPU and there is nothing here that could run it.
    """
    _refuse(
        f"poptorch.custom_op({name!r}, {domain!r})",
        "it runs C++ that was compiled against PopART for an IPU. Write it with PyTorch's operations, inside "
        "`if not hasattr(poptorch, 'compat_report')` where the program shall also go on running there",
    )


def ctc_beam_search_decoder(probs: Any, lengths: Any, blank: int = 0, beam_width: int = 100, top_paths: int = 1) -> Any:
    """The most likely label sequences of a speech model.

    Raises:
        Error: always, since the search is Graphcore's own library and is not part of training or of graph networks.
    """
    _refuse(
        "poptorch.ctc_beam_search_decoder",
        "the search runs in Graphcore's own library. Decode the model's results outside it, for example with "
        "torchaudio.models.decoder",
    )


def _refuse(what: str, reason: str) -> NoReturn:
    raise Error(f"{what} cannot run on this computer: {reason}.")
