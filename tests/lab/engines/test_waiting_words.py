"""What a job waits for, in words."""

from vitmix.lab.engines.words import Node, waiting_for


def nodes(*totals: dict[str, float], free: dict[str, float] | None = None) -> list[Node]:
    return [Node(f"n{number}", total, free) for number, total in enumerate(totals, 1)]


def test_a_gpu_that_is_taken() -> None:
    three = nodes({"CPU": 8, "GPU": 1}, {"CPU": 8}, {"CPU": 8, "GPU": 2}, free={"CPU": 8, "GPU": 0})
    assert waiting_for({"CPU": 4, "GPU": 1}, three) == "1 GPU: none of the 3 nodes has one free"
    assert waiting_for({"CPU": 4, "GPU": 0.5}, three) == "0.5 GPUs: none of the 3 nodes has as many free"


def test_what_the_whole_cluster_has_free_tells_what_is_short() -> None:
    two = nodes({"CPU": 2, "GPU": 1}, {"CPU": 2, "GPU": 1})
    assert waiting_for({"CPU": 1, "GPU": 1}, two, {"CPU": 3}) == "1 GPU: none of the 2 nodes has one free"
    # One node has the GPU, the other one the cores.
    both = "1 GPU and 2 CPU cores: none of the 2 nodes has both free"
    assert waiting_for({"CPU": 2, "GPU": 1}, two, {"CPU": 3, "GPU": 1}) == both


def test_a_request_that_no_node_can_meet_says_what_to_do() -> None:
    less = "; add such a node, or ask for less (--gpus, --cpus)"
    assert waiting_for({"CPU": 1, "GPU": 1}, nodes({"CPU": 2})) == f"1 GPU: n1, the only node, does not have one{less}"
    split = nodes({"CPU": 8}, {"CPU": 1, "GPU": 1})
    assert waiting_for({"CPU": 4, "GPU": 1}, split) == f"1 GPU and 4 CPU cores: none of the 2 nodes has both{less}"


def test_nodes_in_trouble_are_named() -> None:
    drained = [Node("n1", {"CPU": 2}, {"CPU": 2}, "drained: bad fan"), Node("n2", {"CPU": 2}, {"CPU": 0})]
    expected = "1 CPU core: n2, the only node that takes jobs, does not have one free (n1 is drained: bad fan)"
    assert waiting_for({"CPU": 1, "GPU": 0}, drained) == expected
    assert waiting_for({"CPU": 1}, drained[:1]) == "1 CPU core: no node takes jobs now (n1 is drained: bad fan)"
