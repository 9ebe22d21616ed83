"""Test the repository and file that a reference names."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import SettingError
from npurt.models.choice import HubFile, choose
from npurt.models.hub import Hub
from npurt.models.reference import Reference
from tests.models.hub_server import NAMES


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("a/b", Reference("a/b")),
        ("a/b:Q8_0", Reference("a/b", quant="Q8_0")),
        ("a/b:latest", Reference("a/b")),
        ("a/b/c.gguf", Reference("a/b", file="c.gguf")),
        ("a/b/c/d-*.GGUF", Reference("a/b", file="c/d-*.GGUF")),
        ("a/b.c-d_e@v1.0:q4_0", Reference("a/b.c-d_e", quant="q4_0", revision="v1.0")),
        ("a/b@refs/pr/1", Reference("a/b", revision="refs/pr/1")),
    ],
)
def test_references_are_read(text, reference):
    assert Reference.parse(text) == reference


@pytest.mark.parametrize(
    "text",
    ["", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/b/../../c.gguf", "a/b:", "a b/c", "a/b@../x",
     f"a/b{'c' * 300}", "a--b/c", "a/b\n", "-a/b", "a/b:x/y", "a/b@/etc"],
)  # fmt: skip
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(SettingError, match="USER/REPO"):
        Reference.parse(text)


@given(st.text())
def test_a_reference_never_leads_out_of_the_folder_of_its_repository(text):
    try:
        wanted = Reference.parse(text)
    except SettingError:
        return
    base = Path("/cache")
    folder = Hub("https://x", base)._folder(wanted.repo)
    assert folder.parent == base
    assert os.path.normpath(folder / "refs" / wanted.revision).startswith(f"{folder}/refs/")


def files(*names):
    return [HubFile(name, 1, "0" * 64) for name in names]


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (NAMES, "", ["Tiny-Q4_K_M.gguf"]),
        (("a-Q2_K.gguf", "a-q8_0.gguf"), "", ["a-q8_0.gguf"]),
        (("b.gguf", "a.gguf"), "", ["b.gguf"]),
        (("mmproj-Q4_K_M.gguf", "a-F16.gguf"), "", ["a-F16.gguf"]),
        (NAMES, ":q8_0", ["Tiny-Q8_0.gguf"]),
        (NAMES, "/tiny-q2_k.gguf", ["Tiny-Q2_K.gguf"]),
        (("a-BF16.gguf", "a-F16.gguf"), ":f16", ["a-F16.gguf"]),
        (NAMES, "/*Q2*.gguf", ["Tiny-Q2_K.gguf"]),
        (("Q4_K_M/a-00001-of-00002.gguf", "Q4_K_M/a-00002-of-00002.gguf", "a-Q4_K_M.gguf"), "",
         ["a-Q4_K_M.gguf"]),
        (("q/a-Q4_K_M-00002-of-00002.gguf", "q/a-Q4_K_M-00001-of-00002.gguf"), "",
         ["q/a-Q4_K_M-00001-of-00002.gguf", "q/a-Q4_K_M-00002-of-00002.gguf"]),
    ],
)  # fmt: skip
def test_the_file_is_chosen_as_llama_cpp_does(names, wanted, chosen):
    assert [f.name for f in choose(files(*names), Reference.parse("a/b" + wanted))] == chosen


@pytest.mark.parametrize(
    ("names", "wanted", "says"),
    [
        (NAMES, ":Q6_K", "Tiny-Q8_0.gguf"),
        (NAMES, "/Tiny-Q4_KM.gguf", "Tiny-Q4_K_M.gguf"),
        ((), "", "-GGUF"),
        (("a-Q4_K_M-00001-of-00002.gguf",), "", "a-Q4_K_M-00002-of-00002.gguf"),
    ],
)
def test_a_file_that_is_not_there_is_refused_with_those_that_are(names, wanted, says):
    with pytest.raises(SettingError) as caught:
        choose(files(*names), Reference.parse("a/b" + wanted))

    assert says in str(caught.value)
