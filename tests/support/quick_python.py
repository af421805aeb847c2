"""Python processes that start with torch, PyG and popgeo already imported: copies of one waiting process.

A test that runs a script, a module or a notebook spends most of its time on imports, four seconds each. Use `command()`
in place of `[sys.executable]`; output, status, folder, environment and signals are the same as with a new process. A
test that needs its own imports (another copy of popgeo, other versions) uses `sys.executable`.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

REPOSITORY = Path(__file__).resolve().parents[2]


@functools.cache
def command() -> tuple[str, ...]:
    """Return the replacement of `sys.executable`; the first call starts the waiting process."""
    path = str(Path(tempfile.mkdtemp(prefix="quick-python-")) / "socket")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    serve_command = [sys.executable, __file__, "--serve", path]
    server = subprocess.Popen(serve_command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.wait)
    atexit.register(server.terminate)  # called first, since it is registered last
    return sys.executable, "-S", "-E", __file__, path


def ask(path: str, arguments: list[str]) -> NoReturn:
    """Send this process's arguments, folder, environment and streams to a copy, and end with its status."""
    handed_on = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)  # until the number of the copy is known
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    asked = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    message = json.dumps(asked).encode()
    socket.send_fds(connection, [len(message).to_bytes(8, "little")], [0, 1, 2])
    connection.sendall(message)
    answers = connection.makefile()
    process = int(answers.readline())
    for number in handed_on:
        signal.signal(number, lambda number, _: os.kill(process, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
    status = int(answers.readline())
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def serve(path: str) -> dict[str, Any]:
    """Wait for requests; return a request only in the copy of this process that runs it."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([server, 0], [], [])
        if 0 in readable:  # the parent process has ended
            os._exit(0)
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            return watch(connection)
        connection.close()
        with contextlib.suppress(ChildProcessError):  # ended wardens: their time counts as time of the tests
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def watch(connection: socket.socket) -> dict[str, Any]:
    """Watch one request: report number and status of its copy, and end the copy if the client has gone."""
    length, files, _, _ = socket.recv_fds(connection, 8, 3)
    message = b""
    while len(message) < int.from_bytes(length, "little"):
        message += connection.recv(1 << 16)
    process = os.fork()
    if process == 0:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        return json.loads(message)
    for file in files:
        os.close(file)
    connection.sendall(f"{process}\n".encode())
    ended, status = 0, 0
    while not ended:
        ended, status = os.waitpid(process, os.WNOHANG)
        if not ended and select.select([connection], [], [], 0.02)[0]:
            os.kill(process, signal.SIGKILL)
            ended, status = os.waitpid(process, 0)
    with contextlib.suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Run the request as Python itself would."""
    import runpy

    import matplotlib
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background would ignore Ctrl-C
    os.chdir(request["folder"])
    environment, arguments = request["environment"], request["arguments"]
    os.environ.clear()
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path[1:] if path not in (*paths, str(REPOSITORY)))]
    if arguments[1:2] == ["ipykernel_launcher"]:
        matplotlib.rcParams["backend"] = (
            "module://matplotlib_inline.backend_inline"  # matplotlib was imported before this setting
        )
    elif "MPLBACKEND" in environment:
        matplotlib.rcParams["backend"] = environment["MPLBACKEND"]
    if arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def main() -> None:
    if sys.argv[1] != "--serve":
        ask(sys.argv[1], sys.argv[2:])
    import importlib

    for name in (
        *("torch", "torch_geometric.datasets", "torch_geometric.loader", "torch_geometric.nn", "matplotlib.pyplot"),
        *("popgeo", "popgeo.__main__", "seaborn", "scipy.sparse", "torch.utils.data", "torch.distributed"),
    ):
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("ipykernel.kernelapp")
    del sys.modules["popgeo.__main__"]  # otherwise Python warns if it runs as a module
    gc.freeze()
    gc.set_threshold(50_000)  # these processes end soon
    end(status_of(serve(sys.argv[2])))


def status_of(request: dict[str, Any]) -> int:
    """Run the request; print Python's final message, and return Python's exit status."""
    try:
        become(request)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return stop.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(status: int) -> NoReturn:
    """End the process without destroying every imported module, which takes longer than most tests."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
