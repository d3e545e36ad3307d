"""A task's calls as one Python function: arguments resolved beforehand, values freed after their last use.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

from corewise.dataflow.program import Program, Ref
from corewise.dataflow.schedule import Task


def lifetimes(program: Program, tasks: Sequence[Task]) -> Tuple[List[Set[int]], Set[int], Dict[int, int]]:
    """For each task the values only it uses; the outputs; of the others, how many tasks read them."""
    outputs = {output.value for output in program.outputs if isinstance(output, Ref)}
    makers: Dict[int, int] = {}
    readers: Dict[int, Set[int]] = {}
    for number, task in enumerate(tasks):
        for call in task.calls:
            for value in program.reads(call):
                readers.setdefault(value, set()).add(number)
            for value in program.calls[call].results:
                makers[value] = number
    own: List[Set[int]] = [set() for _ in tasks]
    shared: Dict[int, int] = {}
    for value, maker in makers.items():
        if value in outputs:
            continue
        if readers.get(value, {maker}) <= {maker}:
            own[maker].add(value)
        else:
            shared[value] = len(readers[value])
    return own, outputs, shared


def task_function(program: Program, task: Task, own: Set[int], is_timed: bool = False) -> Callable[..., None]:
    """A function of the list of values that runs the task; timed, also of a clock and a list for times."""
    writer = _Writer(program, task, own)
    lines = writer.lines(is_timed)
    arguments = "v, clock, times" if is_timed else "v"
    source = f"def run({arguments}):\n" + "\n".join(f"    {line}" for line in lines or ["pass"])
    space: Dict[str, Any] = dict(writer.names)
    exec(compile(source, f"<task {program.calls[task.calls[0]].name}>", "exec"), space)
    return space["run"]  # type: ignore[no-any-return]


class _Writer:
    def __init__(self, program: Program, task: Task, own: Set[int]) -> None:
        self.program, self.task, self.own = program, task, own
        self.names: Dict[str, Any] = {}  # operators and constants that cannot be written down

    def lines(self, is_timed: bool) -> List[str]:
        found = []
        last_use = self._last_uses()
        for number in self.task.calls:
            call = self.program.calls[number]
            if is_timed:
                found.append("start = clock()")
            target = self._named(f"f{number}", call.target)
            arguments = [self._written(argument) for argument in call.args]
            arguments += [f"{key}={self._written(argument)}" for key, argument in call.kwargs.items()]
            results = ", ".join(self._place(value) for value in call.results)
            if call.spreads:
                results = f"[{results}]" if results else "[]"
            found.append(f"{results} = {target}({', '.join(arguments)})")
            if is_timed:
                found.append("times.append(clock() - start)")
            gone = [f"t{value}" for value in sorted(self.own) if last_use.get(value) == number]
            if gone:
                found.append(f"del {', '.join(gone)}")
        return found

    def _last_uses(self) -> Dict[int, int]:
        last: Dict[int, int] = {}
        for number in self.task.calls:
            for value in (*self.program.reads(number), *self.program.calls[number].results):
                last[value] = number
        return last

    def _place(self, value: int) -> str:
        return f"t{value}" if value in self.own else f"v[{value}]"

    def _named(self, name: str, thing: Any) -> str:
        self.names[name] = thing
        return name

    def _written(self, argument: Any) -> str:
        if isinstance(argument, Ref):
            return self._place(argument.value)
        if isinstance(argument, list):
            return f"[{', '.join(map(self._written, argument))}]"
        if isinstance(argument, tuple):
            return f"({''.join(f'{self._written(one)}, ' for one in argument)})"
        if argument is None or isinstance(argument, (bool, int)):
            return repr(argument)
        return self._named(f"c{len(self.names)}", argument)
