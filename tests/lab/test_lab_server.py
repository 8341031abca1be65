"""The server's side with a real broker: what its pages are told, when, and what they may do."""

from contextlib import ExitStack

from lab_server import Notebook

from jgpu.wire.messages import CellEnded, CellStarted

MIB = 1 << 20


def kernel(listener, name, **fields):
    """The kernel's row as soon as it has these fields."""
    state = listener.until(
        lambda state: fields.items() <= state["kernels"].get(name, {"": ""}).items()
    )
    return state["kernels"][name]


def test_a_page_is_told_of_a_kernel_from_its_coming_to_its_going(lab):
    with lab.listen() as page:
        first = page.next()
        assert first["known"]
        assert first["may_act"]
        assert first["shares"]
        assert first["problem"] == ""
        assert first["share"]["user"] == "user1"
        assert first["device"]["kind"] == "null"
        with Notebook(lab.broker, "k1", 8 * MIB, "a/<b>.ipynb") as notebook:
            row = kernel(page, "k1", kept=8 * MIB, state="idle", cell="")
            assert row["path"] == "a/<b>.ipynb"
            assert list(row["cells"]) == ["1"]
            assert row["cell_seconds"] == row["cells"]["1"] > 0.0
            notebook.send(CellStarted("2"))
            assert kernel(page, "k1", cell="2")["cell_seconds"] == 0.0
            notebook.send(CellEnded())
            assert kernel(page, "k1", cell="")["cells"] == row["cells"]
        page.until(lambda state: "k1" not in state["kernels"])
        now = lab.state()
        assert now.keys() == page.state.keys()
        assert now["kernels"] == page.state["kernels"] == {}


def test_release_and_evict(lab):
    with lab.listen() as page, Notebook(lab.broker, "k2") as notebook:
        kernel(page, "k2", kept=8 * MIB)
        answer = lab.act("release", "k2")
        assert answer.status == 200
        assert answer.json["text"].startswith("What is not its model")
        kernel(page, "k2", spilled=8 * MIB, kept=0, state="spilled")
        notebook.cell(MIB)
        kernel(page, "k2", spilled=0, kept=9 * MIB)
        assert lab.act("evict", "k2").status == 200
        kernel(page, "k2", spilled=9 * MIB, state="spilled")


def test_anothers_notebook_is_nameless_and_out_of_reach(lab, socket_of):
    with lab.listen() as page, Notebook(socket_of("user2"), "theirs") as _:
        others = [("", False)]
        state = page.until(
            lambda state: (
                [(row["user"], row["own"]) for row in state["device"]["sessions"].values()]
                == others
            )
        )
        assert "theirs" not in state["kernels"]
        answer = lab.act("evict", "theirs")
        assert answer.status == 404
        assert answer.json["message"].startswith("This kernel has nothing on the GPU")


def test_what_is_no_request_is_told_so(lab):
    for body in ("", "no json", "[]", "{}", '{"kernel": 5}', '{"kernel": "' + "x" * 5000 + '"}'):
        answer = lab.request("POST", "jgpu/api/release", body)
        assert answer.status == 400
        assert '{"kernel": ' in answer.json["message"]


def test_pages_are_told_the_same_and_a_late_one_everything(lab):
    with ExitStack() as stack:
        first = stack.enter_context(lab.listen())
        stack.enter_context(Notebook(lab.broker, "k3"))
        kernel(first, "k3", kept=8 * MIB, state="idle")
        late = stack.enter_context(lab.listen())
        assert late.next()["kernels"]["k3"]["kept"] == 8 * MIB
        stack.enter_context(Notebook(lab.broker, "k4"))
        kernel(first, "k4", kept=8 * MIB)
        kernel(late, "k4", kept=8 * MIB)
        assert first.state["kernels"] == late.state["kernels"]


def test_a_page_that_only_looks_is_no_activity_that_would_keep_a_server_from_culling(lab):
    def active():
        return lab.request("GET", "api/status").json["last_activity"]

    before = active()
    assert lab.state()["known"]
    with lab.listen() as page:
        page.next()
        assert active() == before
    assert lab.act("release", "none").status == 404
    assert active() > before, "what a person does is activity"


def test_nothing_is_said_in_the_log(lab):
    lines = lab.log.read_text().replace("jgpu.labserver", "").splitlines()
    assert [line for line in lines if "jgpu" in line and "POST /user/user1/jgpu" not in line] == []
