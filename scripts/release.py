"""Build the files of a release from the last commit, and test their installation; nothing is uploaded.

    python scripts/release.py                                # dist/: the sdist and the wheel, with every check
    python scripts/release.py --only popgeo-0.2.0.tar.gz     # install this file and run the README's lines

The sdist and the wheel are built twice, in different folders, and must be equal bit by bit. Each is installed in a
new virtual environment, and the README's lines run there, outside the clone. The packages that popgeo needs are
downloaded; if `POPGEO_RELEASE_PACKAGES` names a `site-packages` folder, they come from there, which saves minutes.
"""

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LARGEST_WHEEL = 5_000_000  # bytes
INSIDE = re.compile(r"popgeo/|popgeo-[^/]+\.dist-info/|pytest_popgeo\.py$")


def run(*command: str | Path, cwd: Path = REPOSITORY, **environment: str) -> str:
    """Run a command and return its output; end the program with the output if the command fails."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, stdout=-1, stderr=-2, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))} failed with exit status {done.returncode}")
    return done.stdout


def packed_again(sdist: Path, seconds: int) -> None:
    """Rewrite an sdist with an order, times, owners and permissions that do not depend on the build."""
    with tarfile.open(sdist) as before:
        members = sorted(before.getmembers(), key=lambda member: member.name)
        held = [(one, getattr(before.extractfile(one), "read", bytes)()) for one in members]
    with (
        sdist.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as after,
    ):
        for one, content in held:
            one.mtime, one.uid, one.gid, one.uname, one.gname = seconds, 0, 0, "", ""
            one.mode = 0o755 if one.isdir() or one.mode & 0o100 else 0o644
            after.addfile(one, io.BytesIO(content))


def build(into: Path, archive: bytes, seconds: int) -> None:
    """Build the sdist from the files of the last commit, and the wheel from the sdist."""
    make = (sys.executable, "-m", "build", "--no-isolation", "--outdir", into)
    with tempfile.TemporaryDirectory() as folder:
        for part, content in (("--sdist", archive), ("--wheel", None)):
            if content is None:
                (sdist,) = into.glob("*.tar.gz")
                packed_again(sdist, seconds)
                content = sdist.read_bytes()
            with tarfile.open(fileobj=io.BytesIO(content)) as files:
                files.extractall(Path(folder) / part, filter="data")
            (source,) = (Path(folder) / part).iterdir()
            run(*make, part, cwd=source, SOURCE_DATE_EPOCH=str(seconds))


def check_content(wheel: Path) -> None:
    """Print the wheel's content by folder; end the program if it is too large or contains other files."""
    files = zipfile.ZipFile(wheel).infolist()
    sizes: Counter[str] = Counter()
    for one in files:
        sizes["/".join(one.filename.split("/")[:2])] += one.compress_size
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, {len(files)} files; compressed sizes:")
    print("\n".join(f"  {size / 1e3:7.1f} kB  {folder}" for folder, size in sizes.most_common(12)))
    other = [one.filename for one in files if not INSIDE.match(one.filename)]
    if other or wheel.stat().st_size > LARGEST_WHEEL:
        sys.exit(f"{wheel.name} is larger than {LARGEST_WHEEL} bytes, or contains files outside the package: {other}")


def smoke(package: Path) -> None:
    """Install a wheel or an sdist in a new virtual environment, and run the README's lines outside the clone."""
    (lines,) = re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    packages = os.environ.get("POPGEO_RELEASE_PACKAGES")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python = programs / ("python.exe" if os.name == "nt" else "python")
        if packages:
            site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'), end='')")
            (Path(site) / "packages.pth").write_text(packages + "\n")
        quietly = ("install", "--quiet", "--disable-pip-version-check")
        run(python, "-m", "pip", *quietly, *(["--no-deps"] if packages else []), package.resolve())
        print(f"{package.name}, installed alone:")
        print(run(programs / "popgeo", "info", cwd=folder).strip())
        (folder / "lines.py").write_text(
            f"{lines}\nassert popgeo.__file__.startswith({str(folder)!r}), popgeo.__file__\n"
        )
        run(python, "lines.py", cwd=folder)
        print("  the README's lines run")


def release() -> None:
    """Build twice, compare, and check metadata, content and installation of the files."""
    changed = run("git", "status", "--porcelain").strip()
    if changed:
        print(f"Not in this release, because it is not committed:\n{changed}")
    seconds = int(run("git", "log", "-1", "--format=%ct"))
    archive = subprocess.run(
        ["git", "archive", "--prefix=popgeo/", "HEAD"], cwd=REPOSITORY, check=True, stdout=-1
    ).stdout
    shutil.rmtree(REPOSITORY / "dist", ignore_errors=True)
    with tempfile.TemporaryDirectory() as again:
        for into in (REPOSITORY / "dist", Path(again)):
            into.mkdir(exist_ok=True)
            build(into, archive, seconds)
        built = sorted((REPOSITORY / "dist").iterdir())
        differ = [one.name for one in built if one.read_bytes() != (Path(again) / one.name).read_bytes()]
    if differ:
        sys.exit(f"two builds differ: {differ}")
    print("two builds are equal bit by bit")
    print(run(sys.executable, "-m", "twine", "check", "--strict", *built).strip())
    for package in built:
        if package.suffix == ".whl":
            check_content(package)
        smoke(package)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the files of a release, and test them.")
    parser.add_argument("--only", type=Path, nargs="+", default=[], help="test these files and build nothing")
    for chosen in parser.parse_args().only:
        smoke(chosen)
    if not parser.parse_args().only:
        release()
