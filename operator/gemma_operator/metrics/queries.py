"""The PromQL of users: what waits outside of the engines, and what clients offered, per pool.

All texts are asked in one query, each with its number as a label. When that is refused, some text is at fault: it is
looked for by halves, and asked alone from then on, so that one bad text costs no other pool its number.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gemma_operator.metrics.client import MALFORMED, PrometheusClient, QueryRefused, SourceFailed
from gemma_operator.scaling.counters import Missing, MissingReason, PoolId

MOST_QUERIES = 5
"""Per tick. The engines' counters take up to two more, and a tick may ask eight."""
ASK_LABEL = "gemma_ask"
Answer = float | Missing
_QUOTED = re.compile(r"""\"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`|#[^\n]*""", re.DOTALL)
"""PromQL's strings and comments."""
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class PoolQueries:
    """The PromQL that a pool's spec names; each must give one value."""

    backlog: str | None = None
    """Requests that wait outside of the engines."""
    offered: str | None = None
    """Requests per second that clients sent."""


Queries = Mapping[PoolId, PoolQueries]


@dataclass(frozen=True, slots=True)
class Answers:
    """What the users' queries gave."""

    backlog: Mapping[PoolId, Answer]
    offered: Mapping[PoolId, Answer]


def unanswered(queries: Queries, missing: Missing) -> Answers:
    """Answers where nothing could be asked."""
    return Answers(
        {pool: missing for pool, named in queries.items() if named.backlog is not None},
        {pool: missing for pool, named in queries.items() if named.offered is not None},
    )


class _Ask(NamedTuple):
    pool: PoolId
    kind: str
    text: str


class UserQueries:
    """Reads the users' queries; `client` is None where no Prometheus is named."""

    def __init__(self, client: PrometheusClient | None) -> None:
        self._client = client
        self._apart: list[list[_Ask]] = []
        """Groups to be asked on their own: refused within a bigger one."""
        self._scalars: set[_Ask] = set()
        """Texts that give a scalar, which must be made a vector before it can be labelled."""
        self._said: dict[_Ask, Missing] = {}

    def read(self, queries: Queries) -> Answers:
        """Never raises: what fails is Missing for its pool."""
        if self._client is None:
            said = "a query needs a Prometheus: set metrics.prometheusUrl in the chart's values"
            return unanswered(queries, Missing(MissingReason.NOT_CONFIGURED, said))
        asks = [
            _Ask(pool, kind, text)
            for pool, named in sorted(queries.items())
            for kind, text in (("backlog", named.backlog), ("offered", named.offered))
            if text is not None
        ]
        answers: dict[_Ask, Answer] = {ask: _open(ask) for ask in asks if not _is_closed(ask.text)}
        try:
            answers |= self._ask_all(self._client, [ask for ask in asks if ask not in answers])
        except SourceFailed as error:
            answers |= {ask: error.missing for ask in asks if ask not in answers}
        by_kind: dict[str, dict[PoolId, Answer]] = {"backlog": {}, "offered": {}}
        for ask, answer in answers.items():
            by_kind[ask.kind][ask.pool] = answer
        return Answers(by_kind["backlog"], by_kind["offered"])

    def _ask_all(self, client: PrometheusClient, asks: Sequence[_Ask]) -> dict[_Ask, Answer]:
        wanted = set(asks)
        apart = [group for old in self._apart if (group := [ask for ask in old if ask in wanted])]
        taken = {ask for group in apart for ask in group}
        together = [ask for ask in asks if ask not in taken]
        todo = deque([together, *apart] if together else apart)
        answers: dict[_Ask, Answer] = {}
        refused: list[list[_Ask]] = []
        for _ in range(MOST_QUERIES):
            if not todo:
                break
            group = todo.popleft()
            try:
                answers |= self._ask(client, group)
            except QueryRefused as error:
                if len(group) > 1:
                    middle = len(group) // 2
                    todo.extendleft([group[middle:], group[:middle]])
                else:
                    answers[group[0]] = self._said[group[0]] = error.missing
                    refused.append(group)
        self._apart = [*todo, *refused]
        self._said = {ask: said for ask, said in self._said.items() if ask in wanted and ask not in answers} | {
            ask: answer for ask, answer in answers.items() if isinstance(answer, Missing)
        }
        return answers | {ask: self._said.get(ask, _UNASKED) for group in todo for ask in group}

    def _ask(self, client: PrometheusClient, group: list[_Ask]) -> dict[_Ask, Answer]:
        """Ask for some texts at once; a single one as it stands. Raises SourceFailed."""
        if len(group) == 1 and group[0] not in self._scalars:
            return {group[0]: self._ask_alone(client, group[0])}
        result = client.query(" or ".join(self._labelled(ask, number) for number, ask in enumerate(group)))
        values: list[list[Any]] = [[] for _ in group]
        try:
            for item in result:
                values[int(item["metric"][ASK_LABEL])].append(item["value"][1])
        except MALFORMED as error:
            raise client.malformed(error) from error
        return {ask: _answer(ask, found) for ask, found in zip(group, values, strict=True)}

    def _ask_alone(self, client: PrometheusClient, ask: _Ask) -> Answer:
        result = client.query(ask.text)
        try:
            if isinstance(result[0], dict):
                return _answer(ask, [item["value"][1] for item in result])
            _, value = result
        except MALFORMED as error:
            if result == []:
                return _answer(ask, [])
            said = f"query `{ask.text}` gives neither a vector nor a scalar: no range may be at its end"
            raise QueryRefused(Missing(MissingReason.QUERY_FAILED, said)) from error
        self._scalars.add(ask)
        return _answer(ask, [value])

    def _labelled(self, ask: _Ask, number: int) -> str:
        # The line ends keep a comment at the end of the text from taking what follows with it.
        text = f"vector(\n{ask.text}\n)" if ask in self._scalars else f"\n{ask.text}\n"
        return f'label_replace({text}, "{ASK_LABEL}", "{number}", "", "")'


_UNASKED = Missing(
    MissingReason.QUERY_FAILED, "not asked in this tick: a query beside it is refused and being looked for"
)


def _open(ask: _Ask) -> Missing:
    return Missing(MissingReason.QUERY_FAILED, f"query `{ask.text}` has a bracket or a quote that doesn't close")


def _is_closed(text: str) -> bool:
    """Brackets and quotes are closed, so that no text can reach out of the place it is put into."""
    expected: list[str] = []
    for character in _QUOTED.sub("", text):
        if character in _CLOSING:
            expected.append(_CLOSING[character])
        elif character in "\"'`" or (character in _CLOSING.values() and (not expected or expected.pop() != character)):
            return False
    return not expected


def _answer(ask: _Ask, values: Iterable[Any]) -> Answer:
    """The one value, or why it is none: nothing else than a number of 0 and more is ever read as one."""
    listed = list(values)
    if not listed:
        return Missing(MissingReason.NO_SERIES, f"query `{ask.text}` gives no series")
    if len(listed) > 1:
        said = f"query `{ask.text}` gives {len(listed)} series and one is needed: sum them up, for instance by sum(…)"
        return Missing(MissingReason.QUERY_FAILED, said)
    try:
        value = float(listed[0])
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        return Missing(
            MissingReason.QUERY_FAILED, f"query `{ask.text}` gives {listed[0]}: a number of 0 or more is needed"
        )
    return value
