"""A synthetic report for tests: several studies, charts of every shape the page must fit, hostile names."""

import random
from typing import Any

from corewise.analysis.findings.finding import Finding
from corewise.report.report_model import Chart, Column, Report, StudyPart, Table, Unmeasured

HOSTILE = (
    "<script>window.pwned = 'tag'</script>",
    "</script><script>window.pwned = 'closed'</script>",
    '"><img src=x onerror="window.pwned=\'image\'">',
    "'; window.pwned = 'quote'; '",
    "<!-- <script>",
    "{{ 7 * 7 }} ${7*7}",
    "&lt;b&gt; &amp;",
    "مرحبا \u202eright to left",
    "e\u0301\u0323\u0302 combine_codes",
    "👩‍🔬 emoji",
    "nul\0and\x1b[31m",
    "line\u2028separator\u2029",
    "half\ud800pair",
    "W" * 300,
    "=1+1",
)
THREADS = (1, 2, 4, 8, 16)
BATCHES = (1, 8, 32)


def throughput_rows() -> list[dict[str, Any]]:
    """Images per second with intervals, for each batch and number of threads."""
    rows = []
    for batch in BATCHES:
        for threads in THREADS:
            middle = 3.1 * batch**0.35 * threads / (1 + 0.035 * (threads - 1) * (1 + 4 / batch))
            rows.append(
                {"threads": threads, "batch": str(batch), "rate": middle, "low": middle * 0.985, "high": middle * 1.02}
            )
    return rows


def scaling_spec(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Lines with bands and points, as a thread-scaling figure has them."""
    import altair as alt

    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("threads:Q", title="threads", scale=alt.Scale(type="log", base=2)),
        color=alt.Color("batch:N", title="batch", sort=None),
    )
    band = base.mark_errorbar().encode(y=alt.Y("low:Q", title="images/s"), y2="high:Q")
    line = base.mark_line(point=True).encode(y=alt.Y("rate:Q", title="images/s"))
    ideal = alt.Chart(alt.Data(values=[{"x": 1, "y": 3.1}, {"x": 16, "y": 49.6}]))
    bound = ideal.mark_line(strokeDash=[4, 4], color="#888888").encode(x="x:Q", y="y:Q")
    return (band + line + bound).properties(height=320).to_dict()


def heat_spec() -> dict[str, Any]:
    """A heat map with its numbers written in."""
    import altair as alt

    rows = [{"p": p, "t": t, "rate": 20 + p * 1.3 + t * 0.7} for p in THREADS for t in THREADS if p * t <= 16]
    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("p:O", title="processes"), y=alt.Y("t:O", title="threads"))
    cells = base.mark_rect().encode(color=alt.Color("rate:Q", title="images/s", scale=alt.Scale(scheme="viridis")))
    labels = base.mark_text().encode(text=alt.Text("rate:Q", format=".1f"), color=alt.value("white"))
    return (cells + labels).to_dict()


def facet_spec() -> dict[str, Any]:
    """Return small charts side by side."""
    import altair as alt

    rng = random.Random(3)
    rows = [{"t": t, "ms": rng.gauss(40, 2)} for t in THREADS for _ in range(30)]
    return (
        alt.Chart(alt.Data(values=rows), width=200, height=120)
        .mark_tick()
        .encode(
            x=alt.X("ms:Q", title="step time (ms)").scale(zero=False),
            facet=alt.Facet("t:O", columns=3, title="threads"),
        )
        .to_dict()
    )


def hostile_spec() -> dict[str, Any]:
    """Bars whose categories are the hostile names."""
    import altair as alt

    rows = [{"name": name.replace("\ud800", ""), "rate": i + 1.0} for i, name in enumerate(HOSTILE)]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(x="rate:Q", y=alt.Y("name:N", sort=None), tooltip=["name:N", "rate:Q"])
    )
    return {**chart.to_dict(), "title": HOSTILE[0]}


def trial_table(num_rows: int, key: str = "trials") -> Table:
    """As many trials, every number of them different."""
    rng = random.Random(7)
    columns = (
        Column(key="workload", title="Workload"),
        Column(key="threads", title="Threads", kind="number"),
        Column(key="batch", title="Batch", kind="number"),
        Column(key="rate", title="Throughput", kind="number", unit="images/s", hint="Median over processes."),
        Column(key="low", title="95 % interval", kind="number", unit="images/s", upto="high"),
        Column(key="high", title="95 % interval, high", kind="number", unit="images/s"),
        Column(key="efficiency", title="Efficiency", kind="percent", hint="Against one thread of the same batch."),
        Column(key="step", title="Step", kind="seconds"),
        Column(key="memory", title="Memory", kind="bytes"),
        Column(key="finished", title="Finished", kind="time"),
    )
    rows = []
    for i in range(num_rows):
        rate = rng.lognormvariate(3, 0.8)
        low, high = rate * 0.99, rate * 1.01
        rows.append(
            (
                rng.choice(("resnet50", "alexnet", "wide-resnet101-2")),
                rng.choice(THREADS),
                rng.choice(BATCHES),
                rate if i % 97 else None,
                low if i % 97 else None,
                high if i % 97 else None,
                rng.random(),
                1 / rate,
                rng.randrange(1 << 28, 1 << 33),
                f"2026-11-{1 + i % 28:02d}T10:{i % 60:02d}:00Z",
            )
        )
    return Table(key=key, title="All trials", columns=columns, rows=rows, best_rows=(3, 5), caption="One row a trial.")


def hostile_table() -> Table:
    """A table whose titles, texts and keys are the hostile names."""
    columns = (
        Column(key="name", title=HOSTILE[0], hint=HOSTILE[2]),
        Column(key="value", title="Value", kind="number", unit="<b>/s"),
    )
    rows = [(name, i * 1.5) for i, name in enumerate(HOSTILE)]
    return Table(key=HOSTILE[1], title=HOSTILE[1], columns=columns, rows=rows, caption=HOSTILE[2])


def machine_table() -> Table:
    """A machine as names and values."""
    columns = (Column(key="fact", title="Fact"), Column(key="value", title="Value"))
    rows = [
        ("CPU", "Intel Xeon Platinum 8358"),
        ("Cores", "16 of 64, one socket"),
        ("Memory", "128 GiB"),
        ("Kernel", "6.1.0"),
        ("Allocation", "CPUs 0-15, cgroup quota 16"),
    ]
    return Table(key="machine", title="node01", columns=columns, rows=rows)


def scaling_study(num_rows: int = 15) -> StudyPart:
    """A study with everything a study may have."""
    charts = (
        Chart(
            key="throughput",
            title="Throughput against threads",
            spec=scaling_spec(throughput_rows()),
            caption="Median over 5 processes; bars are 95 % intervals (Student's t on logarithms). "
            "The dashed line is one thread's rate times the threads.",
            alt="Three rising lines, one a batch size; beyond 8 threads all fall behind the dashed line.",
        ),
        Chart(
            key="hybrid",
            title="Processes × threads",
            spec=heat_spec(),
            caption="Throughput of each division of 16 cores.",
            alt="A triangle of cells, brightest where 8 processes have 2 threads each.",
        ),
        Chart(
            key="samples",
            title="Distribution of samples",
            spec=facet_spec(),
            caption="Each tick is one timed step.",
            alt="Five rows of ticks, all centred near 40 ms.",
        ),
    )
    return StudyPart(
        key="thread-scaling",
        title="Thread scaling of ResNet-50",
        question="How many threads should one process of ResNet-50 training use on 16 cores?",
        answers=(
            "Use 8 threads with batch 32: 101.3 images/s (99.8–102.7), 1.9 times the default of 16 threads.",
            "The gain over 4 threads is real (1.31×, 1.28–1.34); beyond 8 threads it falls.",
            "To run it: `corewise run thread-scaling --set threads=8 --set batch=32`.",
        ),
        charts=charts,
        tables=(trial_table(num_rows),),
        unmeasured=(
            Unmeasured(
                status="failed",
                reason="Out of memory: the rank was killed by the kernel",
                num_trials=2,
                points=("threads 16, batch 512", "threads 8, batch 512"),
            ),
            Unmeasured(
                status="skipped",
                reason="processes × threads is more than the 16 cores of the allocation",
                num_trials=1200,
                points=tuple(f"processes {p}, threads {t}" for p in (2, 4, 8) for t in (16, 32)),
            ),
        ),
        method=(
            ("Processes per trial", "5 to 10, until the interval is within 2 %"),
            ("Interval", "95 %, Student's t on logarithms of process medians, Pocock's level for looks"),
            ("Disturbed runs", "3 set aside and repeated"),
        ),
    )


def hostile_study() -> StudyPart:
    """A study in which every text is out to break the page."""
    chart = Chart(key=HOSTILE[0], title=HOSTILE[0], spec=hostile_spec(), caption=HOSTILE[1], alt=HOSTILE[2])
    failed = Unmeasured(status="failed", reason=HOSTILE[1], num_trials=3, points=HOSTILE)
    return StudyPart(
        key=HOSTILE[1],
        title=HOSTILE[1],
        question=HOSTILE[0],
        answers=HOSTILE,
        charts=(chart,),
        tables=(hostile_table(),),
        unmeasured=(failed,),
        method=tuple((name, name) for name in HOSTILE),
        progress=HOSTILE[0],
    )


def build_sample_report(**changes: Any) -> Report:
    """Build a report of one study, findings, a machine and versions; `changes` replace fields."""
    values: dict[str, Any] = {
        "title": "ResNet-50 on 16 cores",
        "made_at": "2026-11-15T13:26:00Z",
        "corewise_version": "0.1.0",
        "summary": (),
        "studies": (scaling_study(),),
        "findings": (
            Finding(level="info", title="Transparent huge pages are on", evidence="`always` in the kernel's file."),
            Finding(
                level="problem",
                title="OMP_NUM_THREADS is set to 1 in the shell",
                evidence="Trials set their own, but a program started by hand would run on one core.",
                remedy="Run `unset OMP_NUM_THREADS` before starting a program by hand.",
            ),
            Finding(level="warning", title="Other work ran on 1.3 CPUs", evidence="3 of 75 runs were repeated."),
        ),
        "machines": (machine_table(),),
        "versions": (
            Table(
                key="versions",
                title="Software",
                columns=(Column(key="package", title="Package"), Column(key="version", title="Version")),
                rows=(("torch", "2.13.0+cpu"), ("numpy", "2.4.6")),
            ),
        ),
        "notices": ("One damaged line in `records/node01.jsonl` was left out.",),
        "sources": ("/data/results/store",),
    }
    return Report(**{**values, **changes})


def hostile_report(**changes: Any) -> Report:
    """Two studies, one of them hostile, and hostile text in every other place."""
    values: dict[str, Any] = {
        "title": HOSTILE[1],
        "summary": HOSTILE[:3],
        "studies": (scaling_study(), hostile_study()),
        "findings": tuple(Finding(level="warning", title=n, evidence=n, remedy=f"`{n}`") for n in HOSTILE),
        "machines": (hostile_table(),),
        "notices": HOSTILE,
        "sources": HOSTILE,
    }
    return build_sample_report(**{**values, **changes})
