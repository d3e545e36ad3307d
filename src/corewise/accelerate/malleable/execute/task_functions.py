"""Compile a task's calls to one Python function that frees values after their last use.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

from corewise.accelerate.capture.program import Program, Ref
from corewise.accelerate.malleable.plan.schedule import OperatorTask


def compute_lifetimes(
    program: Program, tasks: Sequence[OperatorTask]
) -> Tuple[List[Set[int]], Set[int], Dict[int, int]]:
    """Return each task's private values, the outputs, and the number of readers of shared values."""
    outputs = {output.value for output in program.outputs if isinstance(output, Ref)}
    makers: Dict[int, int] = {}
    readers: Dict[int, Set[int]] = {}
    for number, task in enumerate(tasks):
        for call in task.calls:
            for value in program.list_reads(call):
                readers.setdefault(value, set()).add(number)
            for value in program.calls[call].results:
                makers[value] = number
    private: List[Set[int]] = [set() for _ in tasks]
    shared: Dict[int, int] = {}
    for value, maker in makers.items():
        if value in outputs:
            continue
        if readers.get(value, {maker}) <= {maker}:
            private[maker].add(value)
        else:
            shared[value] = len(readers[value])
    return private, outputs, shared


def compile_task(
    program: Program, task: OperatorTask, private: Set[int], is_timed: bool = False
) -> Callable[..., None]:
    """Compile a task to a function of the value list; if timed, also of a clock and a list for times."""
    writer = _TaskWriter(program, task, private)
    lines = writer.write_lines(is_timed)
    arguments = "v, clock, times" if is_timed else "v"
    source = f"def run({arguments}):\n" + "\n".join(f"    {line}" for line in lines or ["pass"])
    space: Dict[str, Any] = dict(writer.names)
    exec(compile(source, f"<task {program.calls[task.calls[0]].name}>", "exec"), space)
    return space["run"]  # type: ignore[no-any-return]


class _TaskWriter:
    def __init__(self, program: Program, task: OperatorTask, private: Set[int]) -> None:
        self.program, self.task, self.private = program, task, private
        # Operators and constants that have no literal.
        self.names: Dict[str, Any] = {}

    def write_lines(self, is_timed: bool) -> List[str]:
        lines = []
        last_use = self._find_last_uses()
        for number in self.task.calls:
            call = self.program.calls[number]
            if is_timed:
                lines.append("start = clock()")
            target = self._bind_name(f"f{number}", call.target)
            arguments = [self._write_argument(argument) for argument in call.args]
            arguments += [f"{key}={self._write_argument(argument)}" for key, argument in call.kwargs.items()]
            results = ", ".join(self._write_place(value) for value in call.results)
            if call.has_several_results:
                results = f"[{results}]" if results else "[]"
            lines.append(f"{results} = {target}({', '.join(arguments)})")
            if is_timed:
                lines.append("times.append(clock() - start)")
            freed = [f"t{value}" for value in sorted(self.private) if last_use.get(value) == number]
            if freed:
                lines.append(f"del {', '.join(freed)}")
        return lines

    def _find_last_uses(self) -> Dict[int, int]:
        last: Dict[int, int] = {}
        for number in self.task.calls:
            for value in (*self.program.list_reads(number), *self.program.calls[number].results):
                last[value] = number
        return last

    def _write_place(self, value: int) -> str:
        return f"t{value}" if value in self.private else f"v[{value}]"

    def _bind_name(self, name: str, thing: Any) -> str:
        self.names[name] = thing
        return name

    def _write_argument(self, argument: Any) -> str:
        if isinstance(argument, Ref):
            return self._write_place(argument.value)
        if isinstance(argument, list):
            return f"[{', '.join(map(self._write_argument, argument))}]"
        if isinstance(argument, tuple):
            return f"({''.join(f'{self._write_argument(one)}, ' for one in argument)})"
        if argument is None or isinstance(argument, (bool, int)):
            return repr(argument)
        return self._bind_name(f"c{len(self.names)}", argument)
