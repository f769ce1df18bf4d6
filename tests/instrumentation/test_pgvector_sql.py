"""What is told of a statement by its text: operators, table, k, the vector, the column of scores."""

from __future__ import annotations

import pytest

from neuronscope_instrumentation.pgvector.sql import Place, Score, Statement, read


def said(text: str) -> Statement:
    """What a statement that is about vectors says."""
    found = read(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("operator", "metric"),
    [
        ("<->", "euclid"),
        ("<#>", "dot_negative"),
        ("<=>", "cosine_distance"),
        ("<+>", "manhattan"),
        ("<~>", "hamming"),
        ("<%>", "jaccard"),
        ("<%%>", "jaccard"),  # as drivers want a per cent sign
    ],
)
def test_operators_are_metrics(operator: str, metric: str) -> None:
    """Each of pgvector's operators compares in its own way."""
    statement = said(f"SELECT id FROM items ORDER BY embedding {operator} '[1,2,3]' LIMIT 5")
    assert (statement.metric, statement.search, statement.certain) == (metric, True, True)
    assert statement.query == Place(literal="[1,2,3]")
    assert statement.limit == Place(literal="5")


@pytest.mark.parametrize(
    ("expression", "score"),
    [
        ("embedding <=> $1 AS d", Score("d", "cosine_distance")),
        ('(embedding <=> $1::vector(3)) AS "D"', Score("D", "cosine_distance")),
        ("1 - (embedding <=> $1) AS Similarity", Score("similarity", "cosine")),
        ("(embedding <#> $1) * -1 AS ip", Score("ip", "dot")),
        ("-(embedding <#> $1) AS ip", Score("ip", "dot")),
        ("embedding <-> $1", Score("?column?", "euclid")),
        ("rank() OVER (ORDER BY embedding <-> $1) AS r", None),
        ("avg(embedding <-> $1) AS a", None),
        ("1 / (1 + (embedding <-> $1)) AS s", None),
        ("1 - (embedding <-> $1) AS s", None),  # of no scale that we know
    ],
)
def test_the_column_of_scores_is_the_comparison_itself(expression: str, score: Score | None) -> None:
    """Not something computed from it, unless that is the usual similarity."""
    assert said(f"SELECT id, {expression}, title FROM items ORDER BY 2").score == score


@pytest.mark.parametrize(
    ("text", "table", "filtered", "limit"),
    [
        ("select * from public.Items where a = 1 order by e <=> %s limit %s", "public.items", True, Place(1)),
        (
            'SELECT * FROM ONLY "Items" ORDER BY e <=> $1 FETCH FIRST 3 ROWS ONLY',
            "Items",
            False,
            Place(literal="3"),
        ),
        ("SELECT * FROM t ORDER BY e <=> %(e)s::VECTOR LIMIT %(k)s::INTEGER", "t", False, Place(name="k")),
        (
            "SELECT id FROM (SELECT id, e <=> %s AS d FROM deep WHERE x ORDER BY d LIMIT 40) t LIMIT 5",
            "deep",
            True,
            Place(literal="40"),
        ),
        (
            "WITH s AS (SELECT id FROM docs ORDER BY e <=> %s LIMIT 20) SELECT id FROM s JOIN u USING (id)",
            "docs",
            False,
            Place(literal="20"),
        ),
        ("SELECT id, (SELECT max(n) FROM other WHERE true) FROM docs ORDER BY e <=> %s", "docs", False, None),
        ("SELECT id FROM docs WHERE e <=> %s < 0.5", "docs", True, None),
    ],
)
def test_clauses_are_those_of_the_search(text: str, table: str, filtered: bool, limit: Place | None) -> None:
    """Of several SELECTs, the one that compares vectors."""
    statement = said(text)
    assert (statement.table, statement.filtered, statement.limit) == (table, filtered, limit)
    assert statement.search


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "SELECT a < b, a->>'x' FROM t",
        "SELECT id FROM t WHERE a = 'e <=> f' -- <=>\n AND b /* <-> */",
        "SELECT $$ <=> $$ FROM t",
        r"SELECT E'\' <=> ' FROM t",
        "CREATE TABLE t (e vector(3))",
        "",
        "(((((",
        "SELECT",
    ],
)
def test_other_statements_say_nothing(text: str) -> None:
    """Operators in strings and comments are text."""
    assert read(text) is None


def test_a_distance_alone_is_no_search() -> None:
    """Neither ordered nor restricted by it: a value of one row."""
    assert not said("SELECT e <=> '[1]' FROM t WHERE id = 1").search


def test_other_extensions_need_a_vector_to_be_seen() -> None:
    """Trigrams, points and words have a distance of the same name."""
    assert not said("SELECT w FROM words ORDER BY w <-> %s LIMIT 3").certain
    assert said("SELECT w FROM words ORDER BY w <-> %s::vector LIMIT 3").certain


@pytest.mark.parametrize(
    ("text", "operation", "table", "certain"),
    [
        ("INSERT INTO items (e) VALUES (%s)", "INSERT", "items", False),
        ("insert into public.items values ('[1,2]')", "INSERT", "public.items", True),
        ("INSERT INTO items (e) VALUES ($1::halfvec)", "INSERT", "items", True),
        ("UPDATE ONLY items SET e = CAST(%s AS vector)", "UPDATE", "items", True),
        ("DELETE FROM items WHERE id = 1", "DELETE", "items", False),
        ("MERGE INTO items USING x ON true WHEN MATCHED THEN DELETE", "MERGE", "items", False),
    ],
)
def test_writes_name_their_table(text: str, operation: str, table: str, certain: bool) -> None:
    """Whether they write vectors is certain by types and literals; else the parameters tell."""
    statement = said(text)
    assert (statement.operation, statement.table, statement.certain) == (operation, table, certain)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("SELECT a, %s FROM t WHERE b = %s ORDER BY e <=> %s", Place(2)),
        ("SELECT a FROM t WHERE b %% 2 = %s ORDER BY e <=> (%s)", Place(1)),
        ("SELECT a FROM t ORDER BY %(q)s::vector <=> e", Place(name="q")),
        ("SELECT a FROM t ORDER BY e <=> CAST($2 AS vector)", Place(1)),
        ("SELECT a FROM t ORDER BY e <=> other", None),
        ("SELECT a FROM t, u ORDER BY t.e <=> u.e, t.e <=> %s", Place(0)),
    ],
)
def test_the_vector_is_next_to_the_operator(text: str, query: Place | None) -> None:
    """On either side; columns and subqueries are the store's own."""
    assert said(text).query == query


def test_a_statement_is_read_once() -> None:
    """A service sends the same few over and over."""
    text = "SELECT id FROM items ORDER BY e <=> %s LIMIT 7"
    assert read(text) is read(text)


def test_long_literals_are_put_aside() -> None:
    """A vector written into the statement makes no two alike: without it, it is one of the same few."""
    vector = "[" + ",".join(str(i / 1000) for i in range(1536)) + "]"
    statement = said(f"SELECT id, e <=> '{vector}' AS d FROM items WHERE n = 1 ORDER BY d LIMIT 4")
    assert statement.query == Place(literal=vector)
    assert (statement.table, statement.limit, statement.filtered) == ("items", Place(literal="4"), True)
    assert said(f"INSERT INTO items (e) VALUES ('{vector}')").certain
