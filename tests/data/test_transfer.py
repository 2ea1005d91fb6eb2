"""Downloads over loopback: cut and resumed, without ranges, changed meanwhile, from a server that fails."""

import gzip
from pathlib import Path

import pytest

from cabafl.data import transfer
from cabafl.data.transfer import SourceError, Unreachable, Workplace, check_sha256, decompress, download
from tests.data.web import Web

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path / "downloads", tmp_path / "scratch", lambda text, done, total: None)


@pytest.fixture
def url(web: Web) -> str:
    web.files["/set.zip"] = CONTENT
    return f"{web.home}/set.zip"


def ranges(web: Web) -> list[str]:
    return [asked for _, asked in web.requests]


def test_a_whole_file(web: Web, url: str, work: Workplace) -> None:
    news: list[tuple[str, int, int]] = []
    file = download(url, Workplace(work.downloads, work.scratch, lambda *a: news.append(a)))
    assert file.read_bytes() == CONTENT
    assert news[-1] == ("set.zip", len(CONTENT), len(CONTENT))
    assert download(url, work) == file
    assert ranges(web) == [""]  # the second call did not ask again


def test_a_cut_connection_is_resumed_where_it_ended(web: Web, url: str, work: Workplace) -> None:
    web.cuts = [1000, 70_000]
    assert download(url, work).read_bytes() == CONTENT
    assert ranges(web) == ["", "bytes=1000-", "bytes=71000-"]


def test_an_interrupted_download_is_continued_by_the_next_call(web: Web, url: str, work: Workplace) -> None:
    web.cuts = [5000]

    def stop(text: str, done: int, total: int) -> None:
        if done == total == 0:  # the message that it resumes
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(url, Workplace(work.downloads, work.scratch, stop))
    assert not (work.downloads / "set.zip").exists()
    assert download(url, work).read_bytes() == CONTENT
    assert ranges(web) == ["", "bytes=5000-"]


def test_a_file_that_has_changed_meanwhile_starts_again(web: Web, url: str, work: Workplace) -> None:
    web.cuts = [1000, 0, 0, 0]
    with pytest.raises(Unreachable, match="connection lost"):
        download(url, work)
    web.files["/set.zip"], web.etag = b"another", '"two"'
    assert download(url, work).read_bytes() == b"another"


def test_a_server_without_ranges_starts_again(web: Web, url: str, work: Workplace) -> None:
    web.ranges, web.cuts = False, [1000]
    assert download(url, work).read_bytes() == CONTENT
    assert ranges(web) == ["", "bytes=1000-"]


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_without_a_reliable_version_it_starts_again(web: Web, url: str, work: Workplace, etag: str) -> None:
    web.etag, web.cuts = etag, [1000]
    assert download(url, work).read_bytes() == CONTENT
    assert ranges(web) == ["", ""]


def test_a_server_that_always_cuts_is_given_up(web: Web, url: str, work: Workplace) -> None:
    web.ranges, web.cuts = False, [1000] * 100
    with pytest.raises(Unreachable, match=r"set\.zip: connection lost: 1,000 of 256,000 bytes"):
        download(url, work)
    assert len(web.requests) == 1 + transfer.PATIENCE


def test_a_shorter_file_on_the_server_starts_again(web: Web, url: str, work: Workplace) -> None:
    web.cuts = [1000, 0, 0, 0]
    with pytest.raises(Unreachable):
        download(url, work)
    web.files["/set.zip"] = b"short"
    assert download(url, work).read_bytes() == b"short"  # after HTTP 416


def test_an_answer_without_length(web: Web, url: str, work: Workplace) -> None:
    web.lengths = False
    news: list[tuple[int, int]] = []
    file = download(url, Workplace(work.downloads, work.scratch, lambda text, done, total: news.append((done, total))))
    assert file.read_bytes() == CONTENT
    assert all(done > 0 and total == 0 for done, total in news)
    file.unlink()
    web.cuts = [1000]
    assert download(url, work).read_bytes() == CONTENT  # a chunk that is cut is noticed, too


@pytest.mark.parametrize(("code", "requests"), [(404, 1), (403, 1), (503, 1)])
def test_an_error_of_the_server(web: Web, url: str, work: Workplace, code: int, requests: int) -> None:
    web.codes = [code] * 10
    with pytest.raises(Unreachable, match=f"HTTP {code}"):
        download(url, work)
    assert len(web.requests) == requests


def test_an_error_of_the_server_halfway_is_tried_again(web: Web, url: str, work: Workplace) -> None:
    web.cuts, web.codes = [1000], [0, 503, 503]
    assert download(url, work).read_bytes() == CONTENT
    assert ranges(web) == ["", *["bytes=1000-"] * 3]


def test_nobody_listens(work: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(Unreachable, match="refused") as caught:
        download("http://127.0.0.1:9/set.zip", work)
    assert "\n" not in str(caught.value)


def test_a_disk_that_cannot_be_written_is_no_fault_of_the_source(web: Web, url: str, work: Workplace) -> None:
    work.downloads.mkdir(parents=True)
    (work.downloads / "set.zip.part").mkdir()
    with pytest.raises(OSError, match=r"set\.zip\.part"):
        download(url, work)


def test_checksums_and_gzip(tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(CONTENT)[:-100])
    with pytest.raises(SourceError, match="cannot be decompressed"):
        decompress(packed, tmp_path / "a")
    with pytest.raises(SourceError, match="damaged or modified"):
        check_sha256(packed, "0" * 64)
