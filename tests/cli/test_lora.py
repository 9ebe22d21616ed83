"""`--lora FILE[:SCALE]` for the commands that open a model."""

import pytest

from npurt.cli.arguments.options import scaled
from tests.llm import tiny
from tests.llm.test_adapters import merged, pairs_of, write

F32 = tiny.path("llama3", "f32")


def test_run_continues_as_the_merged_model_does(tmp_path, npurt):
    pairs = pairs_of(F32)
    adapter = write(tmp_path / "lora.gguf", pairs)
    whole = tiny.write(merged(F32, (pairs, 0.5)), tmp_path)
    rest = ("-p", "a", "-n", 8, "--temp", 0, "--raw")
    plain = npurt("run", "-m", F32, *rest).out

    result = npurt("run", "-m", F32, "--lora", f"{adapter}:0.5", *rest)

    assert result.code == 0, result
    assert result.out == npurt("run", "-m", whole, *rest).out != plain
    twice = npurt("run", "-m", F32, "--lora", f"{adapter}:0.25", "--lora", f"{adapter}:.25", *rest)
    assert twice.out == result.out


def test_a_file_that_is_no_adapter_is_one_error(npurt):
    result = npurt("run", "-m", F32, "--lora", F32, "-p", "a")
    assert result.code == 1
    assert "is no adapter" in result.err
    assert "remedy: " in result.err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.gguf", ("a.gguf", 1.0)),
        ("a.gguf:0.5", ("a.gguf", 0.5)),
        ("a:b.gguf:-2", ("a:b.gguf", -2.0)),
        ("a:b.gguf", ("a:b.gguf", 1.0)),
        (":2", (":2", 1.0)),
    ],
)
def test_a_scale_follows_the_last_colon(text, found):
    assert scaled(text) == found


def test_a_file_of_the_whole_name_wins(tmp_path):
    path = tmp_path / "a:2"
    path.touch()
    assert scaled(str(path)) == (str(path), 1.0)
