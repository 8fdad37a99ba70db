"""tools/words.py names the words that have a better one, in prose and nowhere else."""

import pytest
import words


def found(tmp_path, monkeypatch, name, text):
    monkeypatch.setattr(words, "ROOT", tmp_path)
    path = tmp_path / name
    path.write_text(text)
    return [hit.split(": ")[1].strip("'") for hit in words.hits(path)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.rs", "fn f() {} // the lease runs out\n"),
        ("a.rs", 'const A: &str = "the lease \\"x\\" runs out";\n'),
        ("a.sql", "COMMENT ON FUNCTION f IS 'The lease runs out';\n"),
        ("a.sql", "/* It runs out. */\n"),
        ("a.py", 'def f():\n    """It runs out."""\n'),
        ("a.md", "It runs out.\n"),
    ],
)
def test_prose_of_every_language_is_read(tmp_path, monkeypatch, name, text):
    assert found(tmp_path, monkeypatch, name, text) == ["runs out"]


def test_names_and_code_are_not_prose(tmp_path, monkeypatch):
    assert found(tmp_path, monkeypatch, "a.rs", "let told = ran_out; // `told`, and the field ran_out\n") == []
    assert found(tmp_path, monkeypatch, "a.md", "```\nit runs out\n```\n") == []
    assert found(tmp_path, monkeypatch, "a.py", "told = 'it runs out'\n") == []


def test_each_word_of_the_list_is_named(tmp_path, monkeypatch):
    wrong = ["what it is told", "it tells the replica", "it ran out", "look at it", "let it go and let go", "shut them out"]
    wrong += ["it lets them in", "it proved no fence", "it is no table", "fenced_claim and its like", "the most that it allows"]
    wrong += ["served in order", "let to its end", "the hand-over"]
    for text in wrong:
        assert found(tmp_path, monkeypatch, "a.md", text), text
    right = ["it tells them apart", "it runs out of memory", "there is no table", "it is no longer held", "the handover"]
    for text in right:
        assert found(tmp_path, monkeypatch, "a.md", text) == [], text
