"""Table 1b, counted."""

from fjord.experiments.runs import RunFolder
from reproduction import figures
from reproduction.command import reproduce_figures
from reproduction.results import make_result


def test_table_1b_is_counted_into_a_run_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    reproduce_figures("table1b", runs=tmp_path)
    shown = capsys.readouterr().out
    assert "555,422,720 │" in shown  # whole, in a narrow terminal
    assert "Runs: table1b/0; the paper's Table 1b" in shown
    section = make_result(figures.FIGURES["table1b"], tmp_path)
    verdicts = {v.claim: v.verdict for v in section.verdicts}
    assert verdicts.pop("cnn-weights") == "does not hold"  # see the README
    assert set(verdicts.values()) == {"holds"}
    assert len(RunFolder(tmp_path / "table1b" / "0").metrics()) == 15
