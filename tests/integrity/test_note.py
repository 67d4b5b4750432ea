"""Signed notes and checkpoints: published examples, a second implementation, and whatever is off by a bit."""

from __future__ import annotations

import base64
import sys

import pytest
from integrity.plain_note import opened

from cordwood.errors import EvidenceRefused, SigningUnavailable
from cordwood.integrity.checkpoint import Checkpoint, open_checkpoint, origin_of, parse, unverified
from cordwood.integrity.note import SigningKey, VerifierKey, open_note, sign

# The example of Go's package, whose form C2SP wrote down.
PUBLIC = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PRIVATE = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
LINE = (
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6Ryy"
    "BwJnAM=\n"
)
NOTE = f"{TEXT}\n{LINE}"
OTHER = SigningKey("another.example/key", bytes(range(32)))
CHECKPOINT = Checkpoint(origin_of("b", "orders", 3), 7, b"r" * 32, b"h" * 32, 2, 41)


def test_the_published_note_is_signed_and_opened_as_published() -> None:
    """Ed25519 gives one signature a text, so the whole note must come out byte for byte."""
    assert sign(TEXT, SigningKey.parse(PRIVATE)) == NOTE
    assert open_note(NOTE, VerifierKey.parse(PUBLIC)) == TEXT
    assert str(SigningKey.parse(PRIVATE).verifier) == PUBLIC
    assert SigningKey.parse(PRIVATE).private_text() == PRIVATE


def test_the_examples_of_the_specification_are_taken_apart() -> None:
    """Nobody published their keys, so what can be seen is that names and ids are found and not ours."""
    poem = (
        "Ognuno sta solo sul cuor della terra\ntrafitto da un raggio di sole:\n\ned è subito sera.\n\n"
        "— quasimodo.example/salvatore NnugSzTjtVAewIS+Z/iJhUPeFDkO/5QQ2i5ddnGITLlC+EhfLW9oJKONrMouFSQU0x"
        "McXxj99ihAQwaqP3ZekRwNtIc=\n"
    )
    sofa = (
        "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
        "— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gG"
        "zGku9nTo+zyWE+xeMcTOAYQ8=\n"
    )
    for note, signer in ((poem, "quasimodo.example/salvatore+367ba04b"), (sofa, "behind-the-sofa+033de0ae")):
        with pytest.raises(EvidenceRefused, match=r"not signed by PeterNeumann.*") as refusal:
            open_note(note, VerifierKey.parse(PUBLIC))
        assert signer in str(refusal.value)


def test_every_flipped_bit_of_a_note_is_refused_by_both_implementations() -> None:
    data, key, refused = NOTE.encode(), VerifierKey.parse(PUBLIC), 0
    assert opened(data, b"PeterNeumann", key.public) == TEXT.encode()
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        assert opened(bytes(wrong), b"PeterNeumann", key.public) is None
        try:
            text = wrong.decode()
        except UnicodeDecodeError:
            continue
        with pytest.raises(EvidenceRefused):
            open_note(text, key)
        refused += 1
    print(f"{refused} notes off by a bit refused")
    assert refused > 1000


def test_a_note_that_others_signed_too_opens_for_each_of_them() -> None:
    both = NOTE + sign(TEXT, OTHER).removeprefix(f"{TEXT}\n")
    assert open_note(both, VerifierKey.parse(PUBLIC)) == open_note(both, OTHER.verifier) == TEXT
    wrong = NOTE + sign("something else\n", OTHER).removeprefix("something else\n\n")
    with pytest.raises(EvidenceRefused, match="is not one of this text"):
        open_note(wrong, OTHER.verifier)
    # One good and one bad signature of the same key: somebody has been at it.
    again = SigningKey("PeterNeumann", SigningKey.parse(PRIVATE).seed)
    with pytest.raises(EvidenceRefused, match="is not one of this text"):
        open_note(NOTE + sign("x\n", again).removeprefix("x\n\n"), VerifierKey.parse(PUBLIC))


def test_an_empty_line_in_the_text_stays_in_the_text() -> None:
    text = "one\n\ntwo\n"
    assert open_note(sign(text, OTHER), OTHER.verifier) == text
    assert opened(sign(text, OTHER).encode(), OTHER.name.encode(), OTHER.verifier.public) == text.encode()


@pytest.mark.parametrize(
    "note",
    [
        "",
        "\n",
        TEXT,
        f"{TEXT}\n",
        f"{TEXT}{LINE}",
        f"\n{LINE}x",
        NOTE[:-1],
        NOTE + "\n",
        NOTE + "more\n",
        NOTE.replace("— ", "- "),
        NOTE.replace("PeterNeumann ", "Peter+Neumann "),
        NOTE.replace("— PeterNeumann ", "—  "),
        NOTE.replace("=", ""),
        NOTE.replace("answer", "ans\x07wer"),
        TEXT + "\n" + LINE * 101,
    ],
)
def test_what_is_no_note_is_refused(note: str) -> None:
    with pytest.raises(EvidenceRefused):
        open_note(note, VerifierKey.parse(PUBLIC))


def test_every_part_and_every_change_of_a_key_is_no_key() -> None:
    refused = 0
    for kind, text in ((VerifierKey, PUBLIC), (SigningKey, PRIVATE)):
        wrong = {text[:end] for end in range(len(text))} | {text[start:] for start in range(1, len(text))}
        wrong |= {text[:at] + chr(ord(text[at]) + 1) + text[at + 1 :] for at in range(len(text))}
        for each in wrong:
            with pytest.raises(EvidenceRefused) as refusal:
                kind.parse(each)
            assert "AYEKFALVFGyNhPJEMzD1QIDr" not in str(refusal.value)
            refused += 1
    print(f"{refused} wrong keys refused")


def test_no_error_and_no_repr_shows_the_secret() -> None:
    key = SigningKey.parse(PRIVATE)
    assert repr(key) == "SigningKey(name='PeterNeumann')"
    assert base64.b64encode(key.seed).decode() not in f"{key}{key!r}{key.verifier!r}"


def test_without_the_package_that_signs_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    sentence = r"pip install 'cordwood\[signed\]'"
    with pytest.raises(SigningUnavailable, match=sentence):
        sign(TEXT, OTHER)
    with pytest.raises(SigningUnavailable, match=sentence):
        open_note(NOTE, VerifierKey.parse(PUBLIC))


def test_a_checkpoint_is_a_note_in_the_form_of_transparency_logs() -> None:
    note = CHECKPOINT.signed(OTHER)
    text = opened(note.encode(), OTHER.name.encode(), OTHER.verifier.public)
    assert text is not None
    assert text.decode().split("\n") == [
        "b/orders/3",
        "7",
        base64.b64encode(b"r" * 32).decode(),
        "chain " + base64.b64encode(b"h" * 32).decode(),
        "leader-epoch 2",
        "next-offset 41",
        "",
    ]
    assert open_checkpoint(note, OTHER.verifier) == unverified(note) == CHECKPOINT
    assert parse(CHECKPOINT.text() + "an extension of tomorrow\n") == CHECKPOINT
    with pytest.raises(EvidenceRefused, match="not signed by PeterNeumann"):
        open_checkpoint(note, VerifierKey.parse(PUBLIC))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("\n7\n", "\n07\n", "size"),
        ("\n7\n", "\n-7\n", "size"),
        ("\n7\n", "\n\u0667\n", "size"),
        ("\n7\n", "\n99999999999999999999\n", "size"),
        ("\nchain ", "\nchains ", "head of the chain"),
        ("cnJy", "cn!y", "root"),
        ("leader-epoch 2", "leader-epoch two", "leader epoch"),
        ("next-offset 41\n", "", "six lines"),
        ("b/orders/3\n", "\n", "six lines"),
    ],
)
def test_a_checkpoint_that_is_none_says_which_line(old: str, new: str, what: str) -> None:
    text = CHECKPOINT.text().replace(old, new, 1)
    assert text != CHECKPOINT.text()
    with pytest.raises(EvidenceRefused, match=what):
        parse(text)
