"""From stores to a report: read, sort into groups, compute, and put into words, charts and tables."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from corewise import __version__
from corewise.report.answers import answers_of, headlines_of, summary_of
from corewise.report.columns import coded
from corewise.report.findings import findings_of, gravity
from corewise.report.groups import Group, Source
from corewise.report.machines import machine_tables, version_tables
from corewise.report.method import method_of
from corewise.report.model import Chart, Finding, Report, StudyPart, Table
from corewise.report.reorders import reorder_table
from corewise.report.sections import LEFT_OVER, Section, sections_of
from corewise.report.sources import read_sources, unfinished_notices
from corewise.report.standing import Standing, efficiencies_of, standing_of
from corewise.report.studied import Studied
from corewise.report.tables import results_table, unmeasured_of
from corewise.report.tuning_again import is_tuning, tune_words
from corewise.report.tuning_words import sentences_of, tables_of
from corewise.report.tunings import Tuning
from corewise.report.words import counted, listed, short
from corewise.spec.errors import UserError, nearest
from corewise.spec.record import Record, utc_now

if TYPE_CHECKING:
    from corewise.report.dynamic import DynamicPart
    from corewise.report.publications import Publication

MAX_GROUPS_WITH_CHARTS = 12
NO_VALUES = coded(())
MAX_FINDINGS = 40
_LONGEST_IN_TITLE = 120
MAX_VERSION_SETS = 8  # whose libraries are looked up


class UnknownStudy(UserError):
    """A study of which the stores hold no record."""


@dataclass(frozen=True)
class Ask:
    """What a report is to hold beside the records themselves."""

    title: str = ""
    refresh_s: float | None = None
    progress: str = ""
    publications: "Sequence[Publication]" = ()


def build_report(
    stores: Sequence[Path],
    *,
    studies: Sequence[str] | None = None,
    tunings: Sequence[str] | None = None,
    refresh_s: float | None = None,
    published: bool = True,
    published_folders: Sequence[Path] = (),
    title: str = "",
    extra_records: Sequence[Record] = (),
    progress: str = "",
) -> Report:
    """The report of all records in the stores, of those of some studies, or of some tunings by their keys.

    `extra_records` stand in for trials that have no record yet, as while a study runs; `progress` says how
    far that is. Stores with the same study are kept apart, by machine and by store, and set side by side.
    """
    from corewise.report.publications import load_publications, shipped_folder

    publications = [*load_publications(shipped_folder())] if published else []
    for folder in published_folders:
        publications += load_publications(folder)
    sources, notices = read_sources(stores, extra_records)
    notices += [] if progress else unfinished_notices(sources)
    _check_studies(studies, sources)
    ask = Ask(title, refresh_s, progress, publications)
    return report_of(sources, studies=studies, tunings=tunings, notices=notices, ask=ask)


def report_of(
    sources: Sequence[Source],
    *,
    studies: Sequence[str] | None = None,
    tunings: Sequence[str] | None = None,
    notices: Sequence[str] = (),
    ask: Ask | None = None,
) -> Report:
    """The report of records already read."""
    ask = ask or Ask()
    sections = sections_of(sources, studies, tunings)
    made = _Parts(sections, sources, ask)
    parts = list(made.parts())
    if len(made.findings) > MAX_FINDINGS:
        made.notices.append(f"The gravest {MAX_FINDINGS} of {len(made.findings):,} findings are told.")
    records = list({id(r): r for section in sections for r in section.records}.values())
    return Report(
        title=ask.title or _title(parts),
        made_at=utc_now(),
        corewise_version=__version__,
        summary=made.summary(),
        asides=[sentence for told in made.headlines for sentence in told[1:]],
        studies=parts,
        findings=sorted(made.findings, key=gravity)[:MAX_FINDINGS],
        machines=machine_tables(records),
        versions=version_tables(records, _libraries(sources)),
        notices=[*notices, *made.notices],
        sources=[source.label for source in sources],
        refresh_s=ask.refresh_s,
    )


def _libraries(sources: Sequence[Source]) -> Mapping[int, Mapping[str, str]]:
    """Of each set of versions (by identity) the libraries that a rank of one of its trials read back."""
    found: dict[int, dict[str, str]] = {}
    for source in sources:
        first = {id(r.versions): r.trial_id for r in source.records if r.status == "ok"}
        for key, trial_id in list(first.items())[:MAX_VERSION_SETS]:
            for record in source.whole_of([trial_id]):
                ranks = [rank for run in record.runs for rank in run.get("ranks") or ()]
                told = [rank.get("versions") for rank in ranks if isinstance(rank, Mapping)]
                found[key] = {
                    str(n): str(v) for each in told if isinstance(each, Mapping) for n, v in each.items()
                }
    return found


def _check_studies(studies: Sequence[str] | None, sources: Sequence[Source]) -> None:
    known = {record.study for source in sources for record in source.records}
    known |= {tuning.study for source in sources for tuning in source.tunings}
    for study in studies or ():
        if study not in known:
            hint = nearest(study, known) if known else "there are no records yet"
            raise UnknownStudy(f"no study {short(study)!r} in {listed([s.label for s in sources])}: {hint}")


def _title(parts: Sequence[StudyPart]) -> str:
    names = [short(part.title, _LONGEST_IN_TITLE) for part in parts]
    return f"Corewise: {listed(names, 3)}" if names else "Corewise: nothing measured yet"


def _question(tuning: Tuning | None) -> str:
    return "" if tuning is None else f"What runs {short(tuning.name, 120)} fastest here?"


class _Parts:
    """The parts of a report, made study by study; what belongs to the whole is gathered on the way."""

    def __init__(self, sections: Sequence[Section], sources: Sequence[Source], ask: Ask) -> None:
        self.sources, self.ask = sources, ask
        self.notices: list[str] = []
        self.findings: list[Finding] = []
        self.headlines: list[list[str]] = []
        self._num_with_charts = 0
        self._keys: set[str] = set()
        self.sections = sections

    def parts(self) -> Iterator[StudyPart]:
        for section in self.sections:
            yield self._part(section)
        left = sum(len(section.groups) for section in self.sections) - MAX_GROUPS_WITH_CHARTS
        if left > 0:
            what = counted(left, "workload", "workloads")
            self.notices.append(
                f"Charts are drawn for the first {MAX_GROUPS_WITH_CHARTS}; {what} have tables only."
            )

    def summary(self) -> list[str]:
        if not self.sections:
            where = shlex.quote(self.sources[0].label) if self.sources else "DIR"
            if any(source.num_unfinished for source in self.sources):
                goes_on = f"`corewise run STUDY --store {where}` goes on where it stopped"
                return [f"No trial is finished yet: {goes_on}."]
            return [f"There are no records yet: run a study with `corewise run STUDY --store {where}`."]
        return summary_of(self.headlines)

    def _part(self, section: Section) -> StudyPart:
        study, tuning, groups = section.study, section.tuning, section.groups
        is_tuned = tuning is not None or section.is_left_over
        members = [(group, standing_of(group)) for group in groups]
        answers = [LEFT_OVER] if section.is_left_over else []
        charts: list[Chart] = []
        tables: list[Table] = []
        citations: dict[str, None] = {}
        if tuning is not None:
            told = sentences_of(tuning)
            self.headlines.append(told[:1])
            answers += told
            charts += self._tuning_charts(tuning)
            tables += tables_of(tuning)
        for group, standing in members:
            if not is_tuned:
                self.headlines.append(headlines_of(group, standing))
                answers += answers_of(group, standing)
            drawn, shown = self._figures(group, standing, citations, is_tuned=is_tuned)
            dynamic = self._dynamic(group, standing)
            if dynamic is not None:
                answers += dynamic.sentences
                drawn, shown = dynamic.among(drawn), [*shown, *dynamic.tables]
            charts += drawn
            tables += shown
        charts += self._roofline(section)
        store = next(
            (s.label for s in self.sources if any(r.study == study for r in s.records)), "corewise-store"
        )
        if members and not section.is_left_over:
            again = tune_words(tuning, groups) if is_tuning(study, groups) else ()
            self.findings += findings_of(Studied(study, store, members, again))
        method = method_of(groups)
        method += [("published figures", short(citation, 400)) for citation in citations]
        return StudyPart(
            key=self._free_key(section.title),
            title=section.title,
            question=next((group.question for group in groups if group.question), _question(tuning)),
            answers=answers,
            charts=[replace(chart, key=self._free_key(chart.key)) for chart in charts],
            tables=[replace(table, key=self._free_key(f"{study} {table.key}")) for table in tables],
            unmeasured=unmeasured_of(groups),
            method=method,
            progress=self.ask.progress,
        )

    def _figures(
        self, group: Group, standing: Standing, citations: dict[str, None], *, is_tuned: bool = False
    ) -> tuple[list[Chart], list[Table]]:
        charts: list[Chart] = []
        tables: list[Table] = []
        if self._num_with_charts < MAX_GROUPS_WITH_CHARTS:
            from corewise.report.charts.choose import charts_of
            from corewise.report.published import beside

            self._num_with_charts += 1
            charts += [] if is_tuned else charts_of(group, standing)  # steps of a ladder are no grid
            besides = beside(group, standing, self.ask.publications)
            charts += [*besides.charts, *self._samples(group, standing)]
            tables += besides.tables
            citations.update(dict.fromkeys(besides.sources))
        results = results_table(group, standing, efficiencies_of(group))
        first = [table for table in (results, reorder_table(group)) if table is not None]
        return charts, [*first, *tables]

    def _dynamic(self, group: Group, standing: Standing) -> "DynamicPart | None":
        """What is to be said of changing thread widths, where they were measured."""
        if "malleable" not in group.columns.get("execution", NO_VALUES).values:
            return None
        from corewise.report.dynamic import dynamic_part

        return dynamic_part(group, standing, self.ask.publications)

    def _roofline(self, section: Section) -> list[Chart]:
        """The study's trials under the ceilings of their machines, where these are known."""
        if not any("fraction_of_ceiling" in r.metrics for group in section.groups for r in group.records):
            return []
        from corewise.report.charts.roofline import roofline_chart

        chart = roofline_chart(section.study, section.title, section.groups)
        return [] if chart is None else [chart]

    def _tuning_charts(self, tuning: Tuning) -> list[Chart]:
        from corewise.report.charts.ladder import tuning_charts

        return tuning_charts(tuning)

    def _samples(self, group: Group, standing: Standing) -> list[Chart]:
        """The chart of raw samples, which are fetched for a few trials only."""
        from corewise.report.charts.choose import trials_to_look_into
        from corewise.report.charts.samples import samples_chart

        chosen = trials_to_look_into(group, standing)
        found: dict[int, Sequence[Sequence[float]]] = {}
        for i in chosen:
            for record in group.sources[i].whole_of([group.records[i].trial_id]):
                found[i] = [run.get("samples_s") or () for run in record.runs if run.get("status") == "ok"]
        chart = samples_chart(group, found, chosen)
        return [] if chart is None else [chart]

    def _free_key(self, name: str) -> str:
        """A key made of letters, digits and hyphens that no other part of the report has."""
        from corewise.report.charts.look import key_of

        base = key_of(name)
        key, number = base, 1
        while key in self._keys:
            number += 1
            key = f"{base}-{number}"
        self._keys.add(key)
        return key
