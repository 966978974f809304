"""Why it exists: whatever nccl-tests has printed since 2019 is read, and nothing else is taken for
it. The logs are made by `nccl_tests_log.py`."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.calibrate.nccl_log import NO_ROOT, OPERATIONS, LogError, parse, read_log
from phantora_ns.calibrate.samples import measured, split
from tests.calibrate.nccl_tests_log import COLUMNS, FORMATS, OLD_COLUMNS, Log

SIZES = st.dictionaries(
    st.integers(3, 34).map(lambda power: 1 << power),
    st.tuples(st.floats(1, 9e6), st.floats(1, 9e6)),
    min_size=1,
    max_size=12,
)
LOGS = st.builds(
    Log,
    operation=st.sampled_from(OPERATIONS),
    nodes=st.integers(1, 4),
    gpus=st.sampled_from([2, 4, 8]),
    format=st.sampled_from(FORMATS),
).filter(lambda log: log.format != "2.0" or log.operation in OLD_COLUMNS)
TIMES = {1 << 20: (50.0, 51.0), 1 << 26: (400.0, 410.0)}


def name_of(log):
    return f"{log.operation}.log"


@settings(max_examples=100, deadline=None)
@given(LOGS, SIZES)
def test_what_was_written_is_read(log, times):
    (run,) = parse(log.text(times), name_of(log))
    assert run.operation == log.operation and not run.damaged and not run.wrong
    assert run.nccl == ("2.28.9" if log.format == "2.19" else None)
    assert [(rank.number, rank.host, rank.device) for rank in run.ranks] == [
        (number, f"host-{number // log.gpus}", number % log.gpus) for number in range(log.ranks)
    ]
    root = COLUMNS[log.operation][1] if "root" in log.names() else NO_ROOT
    assert [(row.size, row.root) for row in run.rows] == [(size, root) for size in times]
    for row, two in zip(run.rows, times.values(), strict=True):
        assert [timing.us for timing in row.timings] == pytest.approx(two, rel=0.002, abs=0.006)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=string.printable, max_size=400))
def test_other_text_is_refused_in_one_line(text):
    with pytest.raises(LogError) as refused:
        parse(text, "a.log")
    assert "a.log" in str(refused.value) and "\n" not in str(refused.value)


@settings(max_examples=200, deadline=None)
@given(LOGS, SIZES, st.data())
def test_a_damaged_log_gives_true_rows_or_none(log, times, data):
    """Lines are cut, lost, doubled and mixed with others, as in outputs of many processes."""
    lines = log.text(times).splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(["cut", "lose", "twice", "mix", "letter"]))
        line = lines[at]
        place = data.draw(st.integers(0, len(line)))
        if kind == "cut":
            lines[at] = line[:place]
        elif kind == "lose":
            lines[at] = ""
        elif kind == "twice":
            lines.insert(at, line)
        elif kind == "mix":
            lines[at] = line[:place] + "host:12:34 [0] NCCL INFO ring 0" + line[place:]
        else:
            lines[at] = line[:place] + data.draw(st.sampled_from("0x-. 7n")) + line[place + 1 :]
    try:
        runs = parse("\n".join(lines), name_of(log))
    except LogError as error:
        assert "\n" not in str(error)
        return
    for run in runs:
        ranks = len(run.groups()[0])
        share = (ranks - 1) / ranks if run.operation == "hypercube" else 1
        for row in run.rows if ranks > 1 else ():
            for timing in row.timings:
                computed = row.size * share / timing.us / 1000
                assert timing.algorithm == pytest.approx(computed, rel=0.06, abs=0.02)


def test_mpirun_puts_its_tag_into_the_middle_of_a_row():
    """Each piece that a process flushes gets one: a row is flushed three times."""
    log = Log("all_reduce", 1, 8)
    text = log.text(TIMES).replace("    -1", "    -1[1,0]<stdout>:")
    tagged = "\n".join(f"[1,0]<stdout>:{line}" for line in text.splitlines())
    assert len(parse(tagged, "x.log")[0].rows) == 2
    assert len(parse(tagged.replace("[1,0]<stdout>:", "[0]  "), "x.log")[0].rows) == 2


def test_a_log_of_several_tests_is_several_runs():
    logs = [Log("all_gather", 1, 8), Log("reduce_scatter", 2, 8, format="2.13")]
    text = (
        f"{logs[0].text(TIMES)}\n$ mpirun ./build/reduce_scatter_perf -b 8\n{logs[1].text(TIMES)}"
    )
    runs = parse(text, "night.log")
    assert [(run.operation, len(run.ranks)) for run in runs] == [
        ("all_gather", 8),
        ("reduce_scatter", 16),
    ]


@pytest.mark.parametrize("name", ["all-reduce_2n.log", "AllReduce.txt", "x_all_reduce_perf.out"])
def test_a_file_s_name_says_which_test_it_is_of(name):
    assert parse(Log("all_reduce", 1, 2, format="2.13").text(TIMES), name)[0].operation == (
        "all_reduce"
    )


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "broadcast", "sendrecv"])
def test_columns_and_bandwidths_say_which_test_it_is(operation):
    text = Log(operation, 1, 8, format="2.13").text(TIMES)
    assert parse(text, "out.log")[0].operation == operation


@pytest.mark.parametrize("operation", ["all_gather", "alltoall", "gather"])
def test_tests_that_print_alike_are_not_guessed(operation):
    with pytest.raises(LogError, match="does not say which test wrote it; out.log; name the file"):
        parse(Log(operation, 1, 8, format="2.13").text(TIMES), "out.log")


def changed(old, new, log=None):
    text = (log or Log("all_reduce", 1, 8)).text(TIMES)
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "holds no table of nccl-tests"),
        (changed("#  Rank", "#  Rnk"), 'has no line "# Rank'),
        (changed("Rank  3", "Rank  0"), "compile it with MPI=1"),
        (changed("Rank  7", "Rank  9"), "8 ranks are numbered 0, 1, 2, 3, 4, 5, 6, 9"),
        (changed("all_reduce_perf", "alltoallv_perf"), "is of alltoallv_perf; x.log; known are"),
        (changed("all_reduce_perf", "all_gather_perf"), "are not those of all_gather on 8 ranks"),
        (
            changed("1048576", "2097152").replace("67108864", "99"),
            "all 2 rows of its table are damaged",
        ),
    ],
)
def test_bad_logs_say_what_is_wrong(text, said):
    with pytest.raises(LogError, match=said):
        parse(text, "x.log")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(LogError, match="cannot be read: No such file"):
        read_log(tmp_path / "x.log")


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("agg iters: 1", "agg iters: 4", "4 operations in each launch"),
        ("#\n# Using", "# Blocking Enabled: wait and barrier\n#\n# Using", "with barriers"),
        ("  time", "  cputime", "times of the CPU"),
    ],
)
def test_times_of_something_else_are_not_used(old, new, why):
    runs = parse(changed(old, new), "odd.log")
    with pytest.raises(LogError, match=why):
        measured(runs)
    good = parse(Log("all_gather", 1, 8).text(TIMES), "good.log")
    said = measured([*runs, *good])
    assert len(said.samples) == 2 and any("odd.log" in note for note in said.notes)


def test_processes_that_measured_alone_say_nothing_about_links():
    with pytest.raises(LogError, match="one rank communicates with nobody"):
        measured(parse(Log("all_reduce", 1, 1).text(TIMES), "x.log"))


def test_in_place_out_of_place_and_repeats_are_one_sample():
    log = Log("all_reduce", 2, 4)
    runs = parse(log.text({1 << 20: (40.0, 50.0)}) + log.text({1 << 20: (60.0, 70.0)}), "x.log")
    (sample,) = measured(runs).samples
    assert (sample.us, sample.least_us, sample.most_us) == (55.0, 40.0, 70.0)
    assert sample.groups == (tuple((node, gpu) for node in (0, 1) for gpu in range(4)),)
    assert (sample.ranks, sample.nodes) == (8, 2)


def test_processes_with_one_visible_gpu_each_are_numbered():
    text = Log("all_reduce", 2, 4).text(TIMES)
    for device in range(1, 4):
        text = text.replace(f"device  {device}", "device  0")
    places = measured(parse(text, "x.log")).samples[0].groups[0]
    assert places == tuple((node, gpu) for node in (0, 1) for gpu in range(4))


def test_groups_measure_side_by_side():
    """NCCL_TESTS_SPLIT="MOD 4" on two servers with four GPUs: four pairs across the network."""
    log = Log("all_gather", 2, 4, groups=(0, 1, 2, 3) * 2)
    sample = measured(parse(log.text(TIMES), "x.log")).samples[0]
    assert sample.groups == tuple(((0, gpu), (1, gpu)) for gpu in range(4))


def test_logs_of_two_gpu_models_are_refused():
    logs = [Log("all_gather", 1, 2), Log("all_gather", 1, 2, gpu="NVIDIA H200")]
    with pytest.raises(LogError, match="different GPUs: NVIDIA H100 80GB HBM3, NVIDIA H200"):
        measured([run for log in logs for run in parse(log.text(TIMES), "x.log")])


def test_every_second_size_is_left_out_from_the_largest_down():
    times = {1 << power: (10.0, 10.0) for power in range(10, 15)}
    runs = [
        run
        for operation in ("all_gather", "all_reduce")
        for run in parse(Log(operation, 1, 8).text(times), "x.log")
    ]
    fitted, left_out = split(measured(runs).samples)
    assert sorted({sample.size for sample in fitted}) == [1 << 10, 1 << 12, 1 << 14]
    assert sorted({sample.size for sample in left_out}) == [1 << 11, 1 << 13]
    assert len(fitted) == 6 and len(left_out) == 4


@pytest.mark.parametrize("what", ["nccl-library=", "Rank  1", "Group  0", "device  1"])
def test_numbers_of_thousands_of_digits_are_refused_in_words(what):
    """Python reads no more than 4,300 digits."""
    text = Log("all_reduce", 1, 2).text(TIMES)
    assert what in text
    number = what.rstrip("0123456789") + "7" * 5000
    if what == "nccl-library=":  # it is not needed
        assert parse(text.replace(f"{what}22809", number), "x.log")[0].nccl is None
        return
    with pytest.raises(LogError, match="x.log"):
        parse(text.replace(what, number), "x.log")
