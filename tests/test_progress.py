"""Progress in a log: plain lines, a last one always, nothing on standard output."""

from pytest import raises

from deepnmt import progress as module
from deepnmt.progress import progress


def test_the_last_line_has_count_and_rate(capsys):
    with progress("clean", total=2000, unit="lines") as shown:
        shown.advance(1500)
        shown.advance(note="12 dropped")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("clean: 1,501/2,000 lines (")
    assert captured.err.endswith(" lines/s)  12 dropped\n")


def test_lines_come_at_intervals(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    with progress("train", unit="updates") as shown:
        for _ in range(25):
            clock[0] += 1
            shown.advance()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("(")[0] for line in lines] == [
        "train: 10 updates ",
        "train: 20 updates ",
        "train: 25 updates ",
    ]
    assert lines[0].endswith("(1 update/s)")


def test_one_is_singular(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    for total in (None, 1, 5):
        with progress("translate", total=total, unit="lines") as shown:
            clock[0] += 0.01
            shown.advance()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("(")[0] for line in lines] == [
        "translate: 1 line ",
        "translate: 1/1 line ",
        "translate: 1/5 lines ",
    ]
    assert all(line.endswith("(100 lines/s)") for line in lines)


def test_less_than_one_a_second_is_shown_as_the_time_of_one(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    for done in (0, 3):
        with progress("score", total=3, unit="runs") as shown:
            clock[0] += 12
            shown.advance(done)
    assert capsys.readouterr().err.endswith("score: 3/3 runs (4 s per run)\n")


def test_a_failure_is_not_reported_as_done(capsys):
    with raises(RuntimeError), progress("train") as shown:
        shown.advance()
        raise RuntimeError
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_and_keeps_the_last_line(capsys, monkeypatch):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress("clean", total=3, unit="lines") as shown:
        shown.advance(3, note="[odd] note")
    err = capsys.readouterr().err
    assert "clean: 3/3 lines" in err
    assert "[odd] note" in err
