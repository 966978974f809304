"""Writes phantora_ns/data/nccl/MAJOR.MINOR.toml: how each version of NCCL chooses algorithm,
protocol and channels.

Why it exists: NCCL's choices decide which flows a collective has, and its constants change with its
versions. The numbers come from NCCL's public source (github.com/NVIDIA/nccl), one release for each
minor version that a supported PyTorch brings. Numbers are facts; nothing else of that source is
taken. Rule: a number that is not found where it is expected ends the tool.

    git clone https://github.com/NVIDIA/nccl
    .venv/bin/python tools/nccl_constants.py nccl [--check]

`--check` writes nothing and exits 1 when the files differ from what would be written. A new version
is a line in RELEASES; what its formula does differently is to be read in its source
(docs/nccl.md says how the known versions differ).
"""

import argparse
import re
import subprocess
import sys

from generated import ROOT, settle

TARGET = ROOT / "phantora_ns" / "data" / "nccl"
RELEASES = ("2.27.5", "2.28.9", "2.29.7", "2.30.7")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
GENERATIONS = {"ampere": 1, "hopper": 2, "blackwell": 3}  # rows of NCCL's tables
PAT_BASE = 8.0
"""Before 2.28 the base latency of PAT is in the formula, and PAT is in no table of latencies."""
TREE_POWERS = 23
"""Sizes that the formula corrects a tree for: powers of two from 64 B to 256 MB."""


class Source:
    """The files of one release, comments left out."""

    def __init__(self, repository, release):
        self.repository, self.release = repository, release

    def text(self, path):
        """One file."""
        command = ["git", "-C", self.repository, "show", f"v{self.release}-1:{path}"]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode:
            sys.exit(f"nccl_constants.py: {found.stderr.strip()}")
        return re.sub(r"/\*.*?\*/|//[^\n]*", " ", found.stdout, flags=re.S)

    def number(self, path, pattern):
        """The number that the only group of `pattern` matches."""
        found = re.search(pattern, self.text(path))
        if found is None:
            sys.exit(f"nccl_constants.py: {self.release}: no {pattern} in {path}")
        return value_of(found[1])


def value_of(text):
    """A number, or a product of two, as in C."""
    product = 1.0
    for factor in text.split("*"):
        product *= float(factor.strip().rstrip("f"))
    return product


def nested(text, start):
    """The initialiser in braces that begins at or after `start`, as lists of numbers."""
    at = text.index("{", start)
    stack, item = [[]], ""
    for letter in text[at:]:
        if letter in "{,}" and item.strip():
            stack[-1].append(value_of(item))
        if letter in "{,}":
            item = ""
        if letter == "{":
            stack.append([])
        elif letter == "}":
            done = stack.pop()
            stack[-1].append(done)
            if len(stack) == 1:
                return stack[0][0]
        else:
            item += letter if letter != "," else ""
    raise ValueError("unbalanced braces")


def tuning_tables(source):
    """src/graph/tuning.cc: the tables by their names of 2.28 and later."""
    text = source.text("src/graph/tuning.cc")
    tables = {"tree_correction": nested(text, text.index("treeCorrectionFactor["))}
    if "ncclTunerConstantsDefaults" in text:
        start = text.index("ncclTunerConstantsDefaults")
        members = re.sub(r"\.\w+\s*=", " ", text[start : text.index("};", start) + 2])
        names = ("base", "hardware", "ll", "ring_ll128", "tree_ll128", "tree", "nvls_tree")
        tables |= dict(zip(names, nested(members, 0), strict=True))
        tables["nvls_efficiency"] = nested(text, text.index("nvlsEfficiency["))
    else:
        for name, array in (
            ("base", "baseLat "),
            ("hardware", "hwLat "),
            ("ll", "llMaxBws["),
            ("ring_ll128", "perChMaxRingLL128Bws["),
            ("tree_ll128", "perChMaxTreeLL128Bws["),
            ("tree", "perChMaxTreeBws["),
        ):
            tables[name] = nested(text, text.index(array))
        assert "= 8" in text[text.index("NCCL_ALGO_PAT) {") :]  # PAT_BASE
        tables["base"].append([0.0, 0.0, PAT_BASE])
        for place in tables["hardware"]:
            place.append([0.0, 0.0, 0.0])
    return tables


def listing(numbers):
    """A list as TOML has it."""
    return "[" + ", ".join(f"{round(number, 6)}" for number in numbers) + "]"


def latency_tables(tables):
    """`[latency.*]`."""
    yield "[latency.base]          # triples are LL, LL128, Simple"
    places = [("base", tables["base"])]
    places += zip(("nvlink", "pcie", "network"), tables["hardware"], strict=True)
    for name, rows in places:
        if name != "base":
            yield f"\n[latency.{name}]"
        for algorithm, row in zip(ALGORITHMS, rows, strict=True):
            if algorithm in ("tree", "ring"):
                yield f"{algorithm} = {listing(row)}"
            elif not algorithm.startswith("collnet"):
                yield f"{algorithm} = {row[2]}"


def message_rules(source):
    """How a message across servers gets its channels, and LL: it changed with 2.29."""
    paths, enqueue = source.text("src/graph/paths.cc"), source.text("src/enqueue.cc")
    by_message = "nChannels[dir] * ncclParamP2pLLThreshold()" in enqueue
    if not by_message and "nChannelsMax * ncclParamP2pLLThreshold()" not in re.sub(
        r"\s+", " ", enqueue
    ).replace("nChannelsMax*", "nChannelsMax * "):
        sys.exit(f"nccl_constants.py: {source.release}: the rule for LL is not known")
    yield f'pair_ll_per = "{"message" if by_message else "peer"}"'
    found = re.search(r'P2pPerChannelNetBw, "P2P_PER_CHANNEL_NET_BW",\s*(\d+)\)', paths)
    batch = source.number("src/include/device.h", r"define NCCL_MAX_DEV_WORK_P2P_PER_BATCH (\d+)")
    if found:
        yield f"pair_network_bandwidth = {float(found[1])}    # GB/s of NICs for each channel of a peer"
        yield f"pair_batch = {batch:.0f}                    # peers that share a channel in one round"


def channel_table(source):
    """`[channels]`."""
    device, init, enqueue = "src/include/device.h", "src/init.cc", "src/enqueue.cc"

    def shift(path, name):
        return 1 << int(source.number(path, rf'"{name}",\s*\(1 << (\d+)\)'))

    ll_threads = source.number(device, r"define NCCL_LL_MAX_NTHREADS (\d+)")
    ll_lines = source.number(device, r"define NCCL_LL_LINES_PER_THREAD (\d+)")
    line_bytes = 16  # union ncclLLFifoLine: two words of data, each with a flag
    threshold = source.number(enqueue, r'"P2P_LL_THRESHOLD",\s*(\d+)\)')
    most = source.number(device, r"define MAXCHANNELS (\d+)")
    thresholds = [
        source.number("src/include/comm.h", rf"define NCCL_{name}_THREAD_THRESHOLD (\d+)")
        for name in ("LL", "LL128", "SIMPLE")
    ]
    threads = [
        ll_threads,
        source.number(device, r"define NCCL_LL128_MAX_NTHREADS (\d+)"),
        source.number(device, r"define NCCL_SIMPLE_MAX_NTHREADS (\d+)"),
    ]
    yield "[channels]"
    yield f"max = {most / 2:.0f}                         # the search's limit, before channels are doubled"
    yield f"pair = {most / 2:.0f}                        # channels for send and receive"
    yield f'pair_ll_threshold = "{threshold / 1024:.0f} KiB"     # LL up to this size, per channel'
    yield from message_rules(source)
    yield f'pair_ll_chunk = "{ll_threads * ll_lines * line_bytes / 1024:.0f} KiB"'
    yield f'pair_chunk = "{shift(init, "P2P_NVL_CHUNKSIZE") // 1024} KiB"'
    yield f'pair_network_chunk = "{shift(init, "P2P_NET_CHUNKSIZE") // 1024} KiB"'
    yield f"thread_thresholds = {listing(map(int, thresholds))}"
    yield f"threads = {listing(map(int, threads))}"


def generation_tables(source, tables):
    """`[generation.*]`."""
    search, nvls = source.text("src/graph/search.cc"), "src/transport/nvls.cc"
    prefixes = {"ampere": "s", "hopper": "sm90S", "blackwell": "sm100S"}
    channels = {
        "ampere": 0,
        "hopper": source.number(nvls, r"define NVLS_NCHANNELS_SM90 (\d+)"),
        "blackwell": source.number(nvls, r"define NVLS_NCHANNELS_SM100_NVL (\d+)"),
    }
    for name, row in GENERATIONS.items():
        efficiency = tables.get("nvls_efficiency", [0.0, 0.0, 0.85, 0.74])[row]
        borrowed = "" if "nvls_efficiency" in tables or not efficiency else "    # of 2.28"
        prefix = prefixes[name]
        intra, inter = (
            nested(search, search.index(f"float {prefix}peedArray{kind}[]"))
            for kind in ("Intra", "Inter")
        )
        yield f"\n[generation.{name}]"
        yield f"ll_single_node = {tables['ll'][row][0]}"
        yield f"ring_ll128_per_nodes = {listing(tables['ring_ll128'][row])}"
        yield f"tree_ll128_per_nodes = {listing(tables['tree_ll128'][row])}"
        yield f"tree_per_nodes = {listing(tables['tree'][row])}"
        yield f"nvls_efficiency = {efficiency}{borrowed}"
        yield f"nvls_channels = {channels[name]:.0f}"
        yield f"intra_speeds = {listing(intra)}"
        yield f"inter_speeds = {listing(inter)}"


def render(repository, release):
    """The text of one file."""
    source = Source(repository, release)
    tables = tuning_tables(source)
    lines = [
        "# generated by tools/nccl_constants.py, do not edit",
        f"# How NCCL {release} chooses an algorithm, a protocol and a number of channels. Latencies",
        "# in microseconds and bandwidths in GB/s, as there. docs/nccl.md says how versions differ.",
        "",
        "[source]",
        f'nccl = "{release}"',
        'repository = "https://github.com/NVIDIA/nccl"',
        f'tag = "v{release}-1"',
        'files = ["src/graph/tuning.cc", "src/graph/search.cc", "src/graph/paths.cc", "src/enqueue.cc",',
        '         "src/init.cc", "src/transport/nvls.cc", "src/include/device.h", "src/include/comm.h"]',
        "",
        *latency_tables(tables),
        "\n[tree_correction]       # factor on a tree's bandwidth by power of two of the size, from 64 B on",
    ]
    for name, row in zip(("ll", "ll128", "simple"), tables["tree_correction"], strict=True):
        lines.append(f"{name} = {listing(row[:TREE_POWERS])}")
    intel, amd = (tables["ll"][row][1:] for row in (0, 1))
    lines += [
        "\n[ll_across_nodes]       # for 2, and for 4 or more nodes, by the maker of the host's CPU",
        f"intel = {listing(intel)}",
        f"amd = {listing(amd)}",
        "",
        *channel_table(source),
        *generation_tables(source, tables),
    ]
    return "\n".join(lines) + "\n"


def main():
    """Writes, or with --check compares, the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", help="a clone of github.com/NVIDIA/nccl with its tags")
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    texts = {
        TARGET / f"{release.rpartition('.')[0]}.toml": render(options.repository, release)
        for release in RELEASES
    }
    settle(texts, options.check, "tools/nccl_constants.py")


if __name__ == "__main__":
    main()
