"""Which release of NCCL a run simulates: the job's own, one for all ranks."""

import pytest
from client import Client, HubError, form

from phantora_ns.config.nccl import nccl_versions
from phantora_ns.hub.diagnostics import Diagnostics
from phantora_ns.hub.nccl_release import MixedReleases, NcclRelease
from phantora_ns.model.nccl import NcclVersion


class Chosen(NcclRelease):
    """Notes whose choices are made."""

    def __init__(self):
        self.told, self.diagnostics = [], Diagnostics()
        super().__init__(self.diagnostics, self.told.append)


def code_of(version):
    return int(f"{version.major}{version.minor:02}{version.patch:02}")


def test_codes_are_those_of_nccl_h():
    assert str(NcclVersion.of_code(22809)) == "2.28.9" == str(NcclVersion.parse("2.28.9"))
    assert NcclVersion.of_code(2708) == (2, 7, 8)  # NCCL_VERSION until 2.8
    assert NcclVersion.of_code(23007).minor_text == "2.30"


@pytest.mark.parametrize("known", nccl_versions(), ids=str)
def test_a_known_release_decides_without_a_word(known):
    chosen = Chosen()
    for _ in range(2):
        chosen.meet([("rank 0", code_of(known)), ("rank 1", code_of(known))])
    assert chosen.told == [known] and chosen.version == chosen.choices == known
    assert not chosen.diagnostics.of("warning")


@pytest.mark.parametrize(
    ("code", "nearest"),
    [(22805, "2.28"), (22602, "2.27"), (21805, "2.27"), (23103, "2.30"), (30100, "2.27")],
)
def test_another_release_takes_the_nearest(code, nearest):
    chosen = Chosen()
    chosen.meet([("rank 0", code)])
    chosen.meet([("rank 0", code)])
    (known,) = chosen.told
    assert known.minor_text == nearest and chosen.version == NcclVersion.of_code(code)
    counts = list(chosen.diagnostics.of("warning").values())
    assert counts == ([] if nearest == "2.28" else [2])  # a patch level more or less is no guess


def test_a_job_without_nccl_gets_the_measured_one_with_a_notice():
    chosen = Chosen()
    chosen.meet([("rank 0", 0)])
    assert [known.minor_text for known in chosen.told] == ["2.28"] and chosen.version is None
    (text,) = chosen.diagnostics.of("warning")
    assert "was not found" in text and "2.28.9" in text


def test_ranks_with_different_releases_are_refused():
    chosen = Chosen()
    with pytest.raises(MixedReleases, match="rank 0 has 2.28.9, rank 1 has 2.30.7"):
        chosen.meet([("rank 0", 22809), ("rank 1", 23007)])
    with pytest.raises(MixedReleases, match="none that could be found"):
        chosen.meet([("rank 2", 0)])
    assert not chosen.told


def test_every_rank_hears_of_another_release(hub):
    clients = [Client(hub.run_dir, rank) for rank in range(3)]
    opened = [
        client.start_init(b"u" * 128, 3, rank, nccl=22907 if rank == 1 else 22809)
        for rank, client in enumerate(clients)
    ]
    for client, open_one in zip(clients, opened):
        with pytest.raises(HubError, match="rank 0 has 2.28.9, rank 1 has 2.29.7"):
            client.finish_init(*open_one)
    report = hub.stop()
    assert len(report["errors"]) == 1 and report["nccl"] is None


def test_the_result_names_the_release(hub):
    clients = [Client(hub.run_dir, rank) for rank in range(2)]
    opened = [
        client.start_init(b"u" * 128, 2, rank, nccl=23102) for rank, client in enumerate(clients)
    ]
    for client, open_one in zip(clients, opened):
        client.finish_init(*open_one)
    report = hub.stop()
    assert report["nccl"] == {"version": "2.31.2", "choices": "2.30.7"}
    assert report["warnings"] == {
        "NCCL 2.31.2 is not known; its choices are taken to be those of 2.30.7": 1
    }


def test_the_times_are_those_of_the_jobs_release(hub_of):
    """A message of 64 KiB between two GPUs is LL in 2.28 and Simple in 2.30."""

    def end_ns(release):
        hub = hub_of(nodes=1, gpus_per_node=2)
        clients = [Client(hub.run_dir, rank) for rank in range(2)]
        opened = [
            client.start_init(b"u" * 128, 2, rank, nccl=release)
            for rank, client in enumerate(clients)
        ]
        (comm,) = {client.finish_init(*one) for client, one in zip(clients, opened)}
        clients[0].ops(comm, [8, 1 << 16, 7, -1, 1, None, 0])
        clients[1].ops(comm, [9, 1 << 16, 7, -1, 0, None, 0])
        waiting = [client.start_sync() for client in clients]
        return [client.finish_sync(*one) for client, one in zip(clients, waiting)]

    assert end_ns(22705) == end_ns(22809) != end_ns(22907) == end_ns(23007)


def test_a_number_that_is_no_version_is_refused(hub):
    client = Client(hub.run_dir, 0)
    with pytest.raises(HubError, match="no version of NCCL"):
        client.finish_init(*client.start_init(b"u" * 128, 1, 0, nccl=-1))
    assert form([Client(hub.run_dir, 1)], b"v" * 128) == 0
