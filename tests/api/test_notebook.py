"""Why it exists: a cell of a notebook shows how far a run is, and nothing of that where nobody looks. A real
kernel, without a browser."""

import json
import sys

import pytest

nbclient = pytest.importorskip("nbclient", reason="needs pip install nbclient ipykernel")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("quiet", [False, True])
def test_a_cell_shows_progress_and_then_the_report(root, tmp_path, built_library, quiet):
    command = [sys.executable, str(root / "tests/api/job.py")]
    words = f"{command!r}, gpus_per_node=1, host_time='model', quiet={quiet}"
    cells = [
        f"import sys; sys.path.insert(0, {str(root)!r}); import phantora_ns, IPython.display as shown",
        # what a front end would draw over is kept
        "lines = []; old = shown.DisplayHandle.update\n"
        "def update(self, data, **words): lines.append(data['text/plain']); old(self, data, **words)\n"
        "shown.DisplayHandle.update = update",
        f"report = phantora_ns.run({words}); report",
        "import json; print(json.dumps(lines))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=resources
    ).execute()
    ran = notebook.cells[2].outputs
    drawn = [one for one in ran if one.output_type == "display_data"]
    lines = json.loads(notebook.cells[3].outputs[0].text)
    if quiet:
        assert not drawn and not lines
    else:
        assert [one.data["text/plain"] for one in drawn] == [""]  # it goes with the run
        assert lines[-1] == "" and any("1/1 ranks up" in line for line in lines)
    results = [one for one in ran if one.output_type == "execute_result"]
    assert len(results) == 1 and "text/html" in results[0].data
