"""``cordwood checkpoint create --post``: who gets a checkpoint, and as whom it is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.anchoring import anchor, serving
from support.authority import Authority
from support.commands import refused, run, said

import cordwood

TOKEN = "c2VjcmV0LXRva2Vu"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with cordwood.open(path) as log:
        log.topic("orders", config={"cordwood.chain": "true"}).append(b"axe")
    return path


def test_a_checkpoint_goes_over_https_with_a_token_from_a_file_or_the_environment(
    authority: Authority, data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    create = ("checkpoint", "create", "--data", data)
    with anchor(serving(authority)) as found:
        post = ("--post", found.url, "--post-ca", authority.certificate)
        assert said(*create, *post, "--post-token-file", file) == f"{found.url}: answered 201\n"
        assert run(*create, *post, CORDWOOD_POST_TOKEN=TOKEN).exit_code == 0
        said(*create, *post)
    assert [sent for sent, _ in found.requests] == [f"Bearer {TOKEN}", f"Bearer {TOKEN}", None]
    assert {note for _, note in found.requests} == {said(*create)}


def test_a_server_that_is_not_the_one_meant_gets_neither_checkpoint_nor_token(
    authority: Authority, data: Path, tmp_path: Path
) -> None:
    """Another authority, and another host."""
    create = ("checkpoint", "create", "--data", data)
    other = Authority(tmp_path / "other", "other")
    with anchor(serving(authority)) as found:
        for trusted in ((), ("--post-ca", other.certificate)):
            done = run(*create, "--post", found.url, *trusted, CORDWOOD_POST_TOKEN=TOKEN)
            assert done.exit_code == 1
            assert "signed and stored" in done.stderr
            assert "certificate verify failed" in done.stderr
            assert TOKEN not in done.stderr
    with anchor(serving(authority, "elsewhere.example")) as wrong:
        trusting = ("--post", wrong.url, "--post-ca", authority.certificate)
        assert "Hostname mismatch" in refused(*create, *trusting)
    assert found.requests == wrong.requests == []


def test_a_client_shows_its_certificate(authority: Authority, data: Path) -> None:
    create = ("checkpoint", "create", "--data", data)
    own = authority.issue("signer", client=True)
    with anchor(serving(authority, clients=True)) as found:
        post = ("--post", found.url, "--post-ca", authority.certificate)
        said(*create, *post, "--post-cert", own.both)
        said(*create, *post, "--post-cert", own.certificate, "--post-key", own.key)
        assert "did not accept it" in refused(*create, *post)
        assert "cannot be used: it is not PEM" in refused(*create, *post, "--post-cert", own.certificate)
        assert "cannot be used: No such file" in refused(*create, *post, "--post-cert", "/nowhere")
    assert [str(each).count("signer") for each in found.subjects] == [1, 1]


def test_a_redirection_is_a_failure_and_hands_no_token_on(data: Path) -> None:
    with anchor() as elsewhere, anchor(status=302, to=elsewhere.url) as found:
        done = run("checkpoint", "create", "--data", data, "--post", found.url, CORDWOOD_POST_TOKEN=TOKEN)
        assert done.exit_code == 1
        assert "did not accept it: it answered 302" in done.stderr
    assert [sent for sent, _ in found.requests] == [f"Bearer {TOKEN}"], (
        "a token may go to this machine itself"
    )
    assert elsewhere.requests == []


def test_a_token_goes_nowhere_in_the_clear_and_into_no_error(data: Path, tmp_path: Path) -> None:
    create = ("checkpoint", "create", "--data", data)
    done = run(*create, "--post", "http://192.0.2.1/notes", CORDWOOD_POST_TOKEN=TOKEN)
    assert done.exit_code == 1
    assert "goes over https:// only" in done.stderr
    assert TOKEN not in done.stderr
    file = tmp_path / "token"
    for content in (b"", b"two words", f"{TOKEN}\r\nX-Other: 1".encode(), b"\xff"):
        file.write_bytes(content)
        sentence = refused(*create, "--post", "https://localhost:1/", "--post-token-file", file)
        assert "has no bearer token" in sentence
        assert TOKEN not in sentence
    assert "cannot be read" in refused(
        *create, "--post", "https://h/", "--post-token-file", tmp_path / "none"
    )
    assert "no checkpoint was signed" in said("checkpoint", "show", "--data", data)


def test_options_that_need_each_other_are_refused_alone(data: Path, tmp_path: Path) -> None:
    create = ("checkpoint", "create", "--data", data)
    for given in (
        ("--post-ca", "x"),
        ("--post-token-file", "x"),
        ("--post", "http://localhost", "--post-ca", "x"),
        ("--post", "https://localhost", "--post-key", "x"),
        ("--post", "file:///etc/passwd"),
        ("--post", "https://[::1"),
        ("--post", "https://localhost:port"),
        ("--post", "https://localhost/a b"),
        ("--post", "https://localhost/\u00e9"),
    ):
        refused(*create, *given, code=2)
    assert "no checkpoint was signed" in said("checkpoint", "show", "--data", data)


def test_a_password_in_an_address_is_refused_and_not_shown(data: Path) -> None:
    create = ("checkpoint", "create", "--data", data)
    for user in ("anna:hidden-1", "hidden-1", ":hidden-1"):
        done = run(*create, "--post", f"https://{user}@localhost:1/")
        assert done.exit_code == 2
        assert "--post-token-file" in done.stderr
        assert "hidden" not in done.stderr
