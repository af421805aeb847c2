"""Entry point of the command `popgeo`; it imports a command only to run it, so `--help` does not load torch."""

import sys
from collections.abc import Sequence
from importlib import import_module

from popgeo import __version__, command_line, command_parsers
from popgeo.did_you_mean import meant

# The module of each command; the function there and its parser in `command_parsers` have the command's name.
COMMANDS = {
    "demo": "popgeo.demo",
    "convert": "popgeo.convert.command",
    "info": "popgeo.inspect_command",
    "predict": "popgeo.deploy.predict_command",
    "report": "popgeo.inspect_command",
    "train": "popgeo.train.train_command",
    "compare": "popgeo.compare_command",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, or the demo if no command is named.

    The exit status is 2, and one line gives the reason, if an argument is wrong or a file cannot be read or written.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] not in COMMANDS and not words[0].startswith("-"):
        hint = meant(words[0], COMMANDS)
        print(f"popgeo: there is no command {words[0]!r}, but {', '.join(COMMANDS)}.{hint}", file=sys.stderr)
        return 2
    name, options = (words[0], words[1:]) if words and words[0] in COMMANDS else ("demo", words)
    try:
        # The parser answers --help, --version and a wrong option before torch is imported.
        if name == "demo":
            command_parsers.demo(options, __version__)
        else:
            getattr(command_parsers, name)(options)
        return int(getattr(import_module(COMMANDS[name]), name)(options))
    except (ValueError, OSError) as error:
        print(f"popgeo: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def command() -> None:
    """Run `main` as the console command `popgeo`."""
    command_line.run(main)


if __name__ == "__main__":
    command()
