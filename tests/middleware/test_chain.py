import functools

import pytest

from framework.errors import MiddlewareError
from framework.middleware.chain import CLIENT, SERVER, CapsuleChain, Chain, ChainInvocation
from tests.tables import each_row


def layer(name, *, before=None, after=None, on_error=None, yields=1):
    """A middleware class that records its calls."""

    def call(self, log):
        log.append(f"{name} in")
        if before:
            raise before
        try:
            for _ in range(yields):
                yield
        except BaseException as error:
            log.append(f"{name} saw {error}")
            if on_error is None:
                raise
            if on_error != "swallow":
                raise on_error from error
        else:
            log.append(f"{name} out")
            if after:
                raise after

    return type(name, (), {"call": call})


A, B, C = layer("A"), layer("B"), layer("C")


def names(chain):
    found = [call.__self__.__class__.__name__ for call in chain.compile()]
    chain.allow_changes()
    return found


def go(layers, error=None):
    """Pass through; return the recorded calls and whether the body ran."""
    log, chain = [], Chain(("log",))
    for one in layers:
        chain.add(one)
    with ChainInvocation(chain.compile(), log) as invocation:
        if invocation:
            log.append("body")
            if error:
                raise error
    return log


def test_capsule_chain_is_the_base_with_its_own_changes():
    base = Chain(("log",))
    chain = CapsuleChain(base)
    chain.add(C)
    chain.remove(A)
    for one in (A, B):
        base.add(one)  # later than the changes of the capsule
    assert (names(chain), list(base), len(chain), chain.exists(A)) == (["B", "C"], [A, B], 2, False)
    chain.insert_after(C, A)
    chain.insert_before(C, B)
    assert names(chain) == ["B", "C", "A"]
    chain.clear()
    chain.prepend(A)
    assert list(chain) == [A]
    with pytest.raises(MiddlewareError, match="is not a class"):
        chain.add(A())
    chain.compile()
    with pytest.raises(MiddlewareError, match="in use"):
        chain.add(B)


def test_chain_operations_keep_the_order():
    chain = Chain(("log",))
    chain.add(A)
    chain.add(B)
    chain.prepend(C)
    assert names(chain) == ["C", "A", "B"]
    chain.add(C)  # moves
    assert names(chain) == ["A", "B", "C"]
    chain.insert_before(A, C)
    assert names(chain) == ["C", "A", "B"]
    chain.insert_after(A, C)
    assert names(chain) == ["A", "C", "B"]
    chain.prepend(B)
    assert names(chain) == ["B", "A", "C"]
    chain.remove(A)
    chain.remove(A)
    assert names(chain) == ["B", "C"]
    assert (chain.exists(A), chain.exists(B)) == (False, True)


def test_chain_iterates_over_its_classes_and_clears():
    chain = Chain(("log",))
    chain.add(A)
    chain.prepend(B)
    assert (list(chain), len(chain), A in chain, C in chain) == ([B, A], 2, True, False)
    for one in chain:  # a copy: a loop may remove entries
        chain.remove(one)
    assert list(chain) == []
    chain.add(A)
    chain.clear()
    assert (list(chain), chain.compile()) == ([], ())


def test_chain_in_use_refuses_to_be_cleared():
    chain = Chain(("log",))
    chain.add(A)
    chain.compile()
    with pytest.raises(MiddlewareError, match=r"^the chain: the chain is in use"):
        chain.clear()
    assert list(chain) == [A]


def test_chain_insert_beside_an_absent_class_goes_to_the_end():
    chain = Chain(("log",))
    chain.add(A)
    chain.insert_before(C, B)
    assert names(chain) == ["B", "A"]
    chain.insert_after(C, B)
    assert names(chain) == ["A", "B"]


def test_chain_compile_makes_new_instances():
    class Greeting:
        def __init__(self, word, *, times):
            self.text = word * times

        def call(self):
            yield

    chain = Chain(())
    chain.add(Greeting, "hi", times=2)
    (first,), (second,) = chain.compile(), chain.compile()
    assert first.__self__.text == "hihi"
    assert first.__self__ is not second.__self__


SHAPE = "A middleware is a class with a generator method: def call(self, worker, job, queue): code before; yield; code after."


def shaped(call, **more):
    return type("Shaped", (), {"call": call, **more})


def steps(*_facts):
    yield


async def async_steps(self, worker, job, queue):
    yield


async def coroutine(self, worker, job, queue):
    pass


REFUSED = {
    "no call": (int, "it has no method call"),
    "an attribute": (shaped(5), "not a generator function"),
    "an instance": (shaped(steps)(), "it is not a class"),
    "a function": (steps, "it is not a class"),
    "no yield": (shaped(lambda self, worker, job, queue: None), "it has no yield"),
    "returns steps": (shaped(lambda self, *facts: steps(*facts)), "it has no yield"),
    "async steps": (shaped(async_steps), "its call is async"),
    "coroutine": (shaped(coroutine), "its call is async"),
    "too few": (
        shaped(lambda self, worker, job: (yield)),
        "its call(self, worker, job) cannot be called with (worker, job, queue)",
    ),
    "too many": (
        shaped(lambda self, worker, job, queue, pool: (yield)),
        "pool) cannot be called with (worker, job, queue)",
    ),
    "no self": (shaped(lambda worker, job, queue: (yield)), "its call(worker, job, queue) cannot be called"),
    "keyword only": (shaped(lambda self, worker, job, queue, *, more: (yield)), "cannot be called"),
    "static with self": (shaped(staticmethod(lambda self, worker, job, queue: (yield))), "cannot be called"),
}


@each_row(("middleware", "reason"), REFUSED.values(), ids=REFUSED)
@each_row("way", ["add", "prepend", "insert_before", "insert_after"])
def test_chain_refuses_wrong_shape_and_shows_the_right_one(middleware, reason, way):
    chain = Chain(SERVER)
    chain.add(Fits)
    with pytest.raises(MiddlewareError) as caught:
        getattr(chain, way)(*(Fits, middleware) if way.startswith("insert") else (middleware,))
    assert reason in str(caught.value)
    assert str(caught.value).endswith(SHAPE)
    assert caught.value.middleware is middleware
    assert names(chain) == ["Fits"]


def decorated(call):
    @functools.wraps(call)
    def around(*facts):
        return call(*facts)

    return around


class Fits:
    def call(self, worker, job, queue):
        yield


@each_row(
    "call",
    [
        steps,
        lambda self, a, b, c: (yield),
        lambda self, worker, job, queue, pool=None: (yield),
        staticmethod(lambda worker, job, queue: (yield)),
        classmethod(lambda cls, worker, job, queue: (yield)),
        decorated(Fits.call),
    ],
    ids=["any", "other names", "more by default", "static", "class", "wrapped"],
)
def test_chain_accepts_every_call_that_fits(call):
    chain = Chain(SERVER)
    chain.add(shaped(call))
    with ChainInvocation(chain.compile(), "worker", {}, "queue") as invocation:
        assert invocation


def test_chain_of_pushes_requires_a_pool():
    with pytest.raises(
        MiddlewareError, match=r"\(worker, job, queue, pool\).*def call\(self, worker, job, queue, pool\)"
    ):
        Chain(CLIENT).add(Fits)


def test_chain_refuses_wrong_constructor_arguments():
    with pytest.raises(MiddlewareError, match="its constructor"):
        Chain(SERVER).add(Fits, 5)


@each_row("way", ["add", "prepend", "insert_before", "insert_after", "remove"])
def test_chain_in_use_refuses_every_change(way):
    chain = Chain(SERVER)
    chain.add(Fits)
    chain.compile()
    other = shaped(steps)
    with pytest.raises(MiddlewareError, match="before the first push of a process") as caught:
        getattr(chain, way)(*(Fits, other) if way.startswith("insert") else (other,))
    assert "framework.boot()" in str(caught.value)
    assert names(chain) == ["Fits"]
    chain.allow_changes()
    chain.remove(Fits)
    assert names(chain) == []


def test_invocation_runs_the_first_outermost():
    assert go([A, B]) == ["A in", "B in", "body", "B out", "A out"]
    assert go([]) == ["body"]


def test_invocation_without_a_yield_skips_the_body():
    assert go([A, layer("Stop", yields=0), B]) == ["A in", "Stop in", "Stop out", "A out"]


def test_invocation_throws_errors_from_the_inside_out():
    log = []
    with pytest.raises(KeyError) as caught, ChainInvocation((A().call, B().call), log):
        raise KeyError("x")
    assert log == ["A in", "B in", "B saw 'x'", "A saw 'x'"]
    assert caught.value.__cause__ is None


def test_middleware_may_suppress_an_error():
    assert go([A, layer("Eat", on_error="swallow"), B], ValueError("x"))[-2:] == ["Eat saw x", "A out"]


def test_middleware_may_replace_an_error():
    log = []
    with (
        pytest.raises(OSError, match="other") as caught,
        ChainInvocation((A().call, layer("R", on_error=OSError("other"))().call), log),
    ):
        raise ValueError("x")
    assert log[-2:] == ["R saw x", "A saw other"]
    assert str(caught.value.__cause__) == "x"


def test_middleware_error_after_the_yield_goes_outwards():
    with pytest.raises(OSError, match="late"):
        go([A, layer("Late", after=OSError("late"))])


def test_middleware_error_before_the_yield_goes_outwards():
    log = []
    bad = layer("Bad", before=OSError("early"))
    with pytest.raises(OSError, match="early"), ChainInvocation((A().call, bad().call, B().call), log):
        log.append("body")
    assert log == ["A in", "Bad in", "A saw early"]
    assert go([layer("Eat", on_error="swallow"), bad]) == ["Eat in", "Bad in", "Eat saw early"]


def test_middleware_with_two_yields_is_an_error():
    log = []
    with (
        pytest.raises(RuntimeError, match="yielded twice"),
        ChainInvocation((A().call, layer("Two", yields=2)().call), log),
    ):
        pass
    assert log[-1].startswith("A saw a middleware yielded twice")


@each_row("error", [StopIteration("x"), GeneratorExit("x"), KeyboardInterrupt("x"), SystemExit("x")], ids=type)
def test_invocation_passes_stop_iteration_and_generator_exit(error):
    with pytest.raises(BaseException) as caught, ChainInvocation((A().call, B().call), []):
        raise error
    assert error in (caught.value, caught.value.__cause__)
