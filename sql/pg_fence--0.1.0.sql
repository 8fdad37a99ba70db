/* The SQL of pg_fence 0.1.0: CREATE EXTENSION pg_fence runs it.
 *
 * Every function runs with the rights of its caller (the guards' write the table of the guards, which nobody else may,
 * with the rights of its owner), takes NULL to explain it, and writes, so it is volatile and not for parallel workers. What each does is in the README. The key comes as any type, or as text so that an untyped
 * parameter finds a function too; it is read as the type of the primary key. The functions of rows are there with and
 * without the name of the fence column: a default would be read from its text in the catalog several times for each
 * statement that is not prepared, which made a seventh of the whole cost.
 */

\echo Use "CREATE EXTENSION pg_fence" to load this file. \quit

CREATE FUNCTION fenced_claim(
    target anyelement,
    key "any",
    fence bigint
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim(anyelement, "any", bigint) IS
'Stamps the fence on a row and returns the row; no row when a newer fence is stored.';

CREATE FUNCTION fenced_claim(
    target anyelement,
    key "any",
    fence bigint,
    fence_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim(anyelement, "any", bigint, name) IS
'Stamps the fence on a row and returns the row; no row when a newer fence is stored.';

CREATE FUNCTION fenced_claim(
    target anyelement,
    key text,
    fence bigint
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim(anyelement, text, bigint) IS
'Stamps the fence on a row and returns the row; no row when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim(
    target anyelement,
    key text,
    fence bigint,
    fence_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim(anyelement, text, bigint, name) IS
'Stamps the fence on a row and returns the row; no row when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim_json(
    target regclass,
    key "any",
    fence bigint
)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'pg_fence_claim_json'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_claim_json(regclass, "any", bigint) IS
'Stamps the fence on a row and returns the row as jsonb; NULL when a newer fence is stored.';

CREATE FUNCTION fenced_claim_json(
    target regclass,
    key "any",
    fence bigint,
    fence_column name
)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'pg_fence_claim_json'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_claim_json(regclass, "any", bigint, name) IS
'Stamps the fence on a row and returns the row as jsonb; NULL when a newer fence is stored.';

CREATE FUNCTION fenced_claim_json(
    target regclass,
    key text,
    fence bigint
)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'pg_fence_claim_json'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_claim_json(regclass, text, bigint) IS
'Stamps the fence on a row and returns the row as jsonb; NULL when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim_json(
    target regclass,
    key text,
    fence bigint,
    fence_column name
)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'pg_fence_claim_json'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_claim_json(regclass, text, bigint, name) IS
'Stamps the fence on a row and returns the row as jsonb; NULL when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim_many(
    target anyelement,
    keys "any",
    fence bigint
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 10;

COMMENT ON FUNCTION fenced_claim_many(anyelement, "any", bigint) IS
'Stamps the fence on many rows and returns them in the order of the key; a row with a newer fence is absent.';

CREATE FUNCTION fenced_claim_many(
    target anyelement,
    keys "any",
    fence bigint,
    fence_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 10;

COMMENT ON FUNCTION fenced_claim_many(anyelement, "any", bigint, name) IS
'Stamps the fence on many rows and returns them in the order of the key; a row with a newer fence is absent.';

CREATE FUNCTION fenced_claim_many(
    target anyelement,
    keys text,
    fence bigint
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 10;

COMMENT ON FUNCTION fenced_claim_many(anyelement, text, bigint) IS
'Stamps the fence on many rows and returns them in the order of the key; a row with a newer fence is absent. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim_many(
    target anyelement,
    keys text,
    fence bigint,
    fence_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 10;

COMMENT ON FUNCTION fenced_claim_many(anyelement, text, bigint, name) IS
'Stamps the fence on many rows and returns them in the order of the key; a row with a newer fence is absent. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_update(
    target regclass,
    key "any",
    fence bigint,
    patch jsonb
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_update'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_update(regclass, "any", bigint, jsonb) IS
'Sets columns of a row that the fence has claimed; false when a newer fence is stored.';

CREATE FUNCTION fenced_update(
    target regclass,
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_update'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_update(regclass, "any", bigint, jsonb, name) IS
'Sets columns of a row that the fence has claimed; false when a newer fence is stored.';

CREATE FUNCTION fenced_update(
    target regclass,
    key text,
    fence bigint,
    patch jsonb
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_update'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_update(regclass, text, bigint, jsonb) IS
'Sets columns of a row that the fence has claimed; false when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_update(
    target regclass,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_update'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_update(regclass, text, bigint, jsonb, name) IS
'Sets columns of a row that the fence has claimed; false when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_update_returning(
    target anyelement,
    key "any",
    fence bigint,
    patch jsonb
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_update_returning'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb) IS
'Sets columns of a row that the fence has claimed and returns the row; no row when a newer fence is stored.';

CREATE FUNCTION fenced_update_returning(
    target anyelement,
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_update_returning'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb, name) IS
'Sets columns of a row that the fence has claimed and returns the row; no row when a newer fence is stored.';

CREATE FUNCTION fenced_update_returning(
    target anyelement,
    key text,
    fence bigint,
    patch jsonb
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_update_returning'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb) IS
'Sets columns of a row that the fence has claimed and returns the row; no row when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_update_returning(
    target anyelement,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_update_returning'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb, name) IS
'Sets columns of a row that the fence has claimed and returns the row; no row when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_write(
    target regclass,
    key "any",
    fence bigint,
    patch jsonb
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_write'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_write(regclass, "any", bigint, jsonb) IS
'Stamps the fence and sets columns at once, for writes that depend on nothing read; false when a newer fence is stored.';

CREATE FUNCTION fenced_write(
    target regclass,
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_write'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_write(regclass, "any", bigint, jsonb, name) IS
'Stamps the fence and sets columns at once, for writes that depend on nothing read; false when a newer fence is stored.';

CREATE FUNCTION fenced_write(
    target regclass,
    key text,
    fence bigint,
    patch jsonb
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_write'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_write(regclass, text, bigint, jsonb) IS
'Stamps the fence and sets columns at once, for writes that depend on nothing read; false when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_write(
    target regclass,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_write'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_write(regclass, text, bigint, jsonb, name) IS
'Stamps the fence and sets columns at once, for writes that depend on nothing read; false when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_delete(
    target regclass,
    key "any",
    fence bigint
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_delete'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_delete(regclass, "any", bigint) IS
'Deletes a row that the fence has claimed; false when a newer fence is stored.';

CREATE FUNCTION fenced_delete(
    target regclass,
    key "any",
    fence bigint,
    fence_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_delete'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_delete(regclass, "any", bigint, name) IS
'Deletes a row that the fence has claimed; false when a newer fence is stored.';

CREATE FUNCTION fenced_delete(
    target regclass,
    key text,
    fence bigint
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_delete'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_delete(regclass, text, bigint) IS
'Deletes a row that the fence has claimed; false when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_delete(
    target regclass,
    key text,
    fence bigint,
    fence_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_delete'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_delete(regclass, text, bigint, name) IS
'Deletes a row that the fence has claimed; false when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fence_reset(
    target regclass,
    key "any",
    new_fence bigint,
    fence_column name DEFAULT 'fence'
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_reset'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_reset(regclass, "any", bigint, name) IS
'Stores a fence whatever is stored, and returns what was; 0 is never claimed. For the owner of the table.';

CREATE FUNCTION fence_reset(
    target regclass,
    key text,
    new_fence bigint,
    fence_column name DEFAULT 'fence'
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_reset'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_reset(regclass, text, bigint, name) IS
'Stores a fence whatever is stored, and returns what was; 0 is never claimed. For the owner of the table. Key as text or as an untyped parameter.';

CREATE TABLE fence_guards (
    resource text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL CHECK (fence >= 0)
);

COMMENT ON TABLE fence_guards IS
'The newest fence of each named resource. Written by fenced_guard(), fence_guard_forget() and fence_guard_reset() alone.';
COMMENT ON COLUMN fence_guards.resource IS
'The name that is passed to fenced_guard().';
COMMENT ON COLUMN fence_guards.fence IS
'The newest fence that was let in; 0 is none.';

-- These two columns for ever: a dump names the extension without its version, so it must fit every one.
SELECT pg_catalog.pg_extension_config_dump('fence_guards', '');

CREATE FUNCTION fenced_guard(
    resource text,
    fence bigint
)
RETURNS void
AS 'MODULE_PATHNAME', 'pg_fence_guard'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_guard(text, bigint) IS
'Fences the transaction: refuses a fence that is older than the newest of the resource, and keeps newer ones out to its end.';

CREATE FUNCTION fence_guard_forget(
    older_than bigint
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_guard_forget'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_guard_forget(bigint) IS
'Removes the guards with a fence below this one, which no holder has any more, and returns how many.';

CREATE FUNCTION fence_guard_reset(
    resource text,
    new_fence bigint
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_guard_reset'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_guard_reset(text, bigint) IS
'Stores a fence at a guard whatever is stored, and returns what was; 0 is never stamped.';

CREATE FUNCTION fence_protect(
    target regclass,
    fence_column name DEFAULT 'fence'
)
RETURNS void
AS 'MODULE_PATHNAME', 'pg_fence_protect'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_protect(regclass, name) IS
'Makes the triggers that refuse every write on a table which proved no fence. For the owner of the table.';

CREATE FUNCTION fence_unprotect(
    target regclass
)
RETURNS void
AS 'MODULE_PATHNAME', 'pg_fence_unprotect'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_unprotect(regclass) IS
'Removes the triggers that fence_protect() made. For the owner of the table.';

CREATE FUNCTION fence_use(
    fence bigint
)
RETURNS void
AS 'MODULE_PATHNAME', 'pg_fence_use'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_use(bigint) IS
'Lets plain SQL of this transaction write those rows of protected tables that carry this fence.';

CREATE FUNCTION fence_refuses_update(
    old_fence bigint,
    new_fence bigint
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_refuses_update'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_refuses_update(bigint, bigint) IS
'Condition of the triggers that fence_protect() makes.';

CREATE FUNCTION fence_refuses_delete(
    old_fence bigint
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_refuses_delete'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_refuses_delete(bigint) IS
'Condition of the triggers that fence_protect() makes.';

CREATE FUNCTION fence_refuses_insert(
    new_fence bigint
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_refuses_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_refuses_insert(bigint) IS
'Condition of the triggers that fence_protect() makes.';

CREATE FUNCTION fence_refuse()
RETURNS trigger
AS 'MODULE_PATHNAME', 'pg_fence_refuse'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_refuse() IS
'Refuses a write: the triggers that fence_protect() makes.';

CREATE FUNCTION fence_moves()
RETURNS trigger
AS 'MODULE_PATHNAME', 'pg_fence_moves'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_moves() IS
'Tells rows that move between partitions from new ones: the triggers that fence_protect() makes.';

CREATE FUNCTION fence_trigger_column(
    condition pg_node_tree,
    kind smallint
)
RETURNS smallint
AS 'MODULE_PATHNAME', 'pg_fence_trigger_column'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_trigger_column(pg_node_tree, smallint) IS
'The number of the fence column in the condition of a trigger that fence_protect() made, else NULL.';

CREATE VIEW fence_protected AS
WITH RECURSIVE ours AS (
    SELECT
        t.tgrelid,
        t.tgname,
        t.tgtype,
        t.tgfoid,
        CASE t.tgenabled
            WHEN 'A' THEN true
            WHEN 'O' THEN pg_catalog.current_setting('session_replication_role') <> 'replica'
            WHEN 'R' THEN pg_catalog.current_setting('session_replication_role') = 'replica'
            ELSE false
        END AS fires,
        t.tgenabled = 'D' AS is_disabled,
        -- Row triggers have the condition on the fence column, the others none; none is for some columns only.
        fence_trigger_column(t.tgqual, t.tgtype) AS fence_attnum,
        pg_catalog.cardinality(t.tgattr::smallint[]) = 0
            AND (t.tgtype & 1 = 1) = (fence_trigger_column(t.tgqual, t.tgtype) IS NOT NULL)
            AND (t.tgtype & 1 = 1) = (t.tgqual IS NOT NULL) AS is_as_made
    FROM pg_catalog.pg_trigger AS t
    WHERE t.tgfoid IN ('fence_refuse()'::regprocedure, 'fence_moves()'::regprocedure)
),
member (relid) AS (
    SELECT tgrelid
    FROM ours
    UNION
    SELECT i.inhrelid
    FROM member AS m
    JOIN pg_catalog.pg_inherits AS i ON i.inhparent = m.relid
),
-- What pg_trigger.tgtype says of each trigger that is needed, and of which kinds of relations.
needed (place, what, tgtype, tgfoid, relkinds) AS (
    VALUES
        (1, 'UPDATE', 17, 'fence_refuse()'::regprocedure, 'rpf'),
        (2, 'DELETE', 9, 'fence_refuse()'::regprocedure, 'rpf'),
        (3, 'INSERT', 5, 'fence_refuse()'::regprocedure, 'rf'),
        (4, 'TRUNCATE', 34, 'fence_refuse()'::regprocedure, 'rpf'),
        (5, 'the begin of row moves', 18, 'fence_moves()'::regprocedure, 'p'),
        (6, 'the end of row moves', 16, 'fence_moves()'::regprocedure, 'p')
),
-- The column that most row triggers name: one that names another was altered.
fence_column (relid, attnum) AS (
    SELECT m.relid, pg_catalog.mode() WITHIN GROUP (ORDER BY o.fence_attnum)
    FROM member AS m
    LEFT JOIN ours AS o ON o.tgrelid = m.relid AND o.is_as_made
    GROUP BY m.relid
)
SELECT
    c.oid::regclass AS target,
    a.attname AS fence_column,
    ARRAY(
        SELECT n.what || ': ' || COALESCE(
            (
                SELECT pg_catalog.string_agg(
                    'trigger ' || pg_catalog.quote_ident(o.tgname) || CASE
                        WHEN o.is_disabled THEN ' is disabled'
                        WHEN NOT o.fires THEN ' does not fire at this session_replication_role'
                        ELSE ' is not as fence_protect() makes it'
                    END,
                    ', ' ORDER BY o.tgname
                )
                FROM ours AS o
                WHERE o.tgrelid = c.oid AND o.tgtype = n.tgtype AND o.tgfoid = n.tgfoid
            ),
            'no trigger'
        )
        FROM needed AS n
        WHERE pg_catalog.strpos(n.relkinds, c.relkind::text) > 0
            AND NOT EXISTS (
                SELECT
                FROM ours AS o
                WHERE o.tgrelid = c.oid
                    AND o.tgtype = n.tgtype
                    AND o.tgfoid = n.tgfoid
                    AND o.fires
                    AND o.is_as_made
                    AND o.fence_attnum IS NOT DISTINCT FROM CASE WHEN n.tgtype & 1 = 1 THEN a.attnum END
            )
        ORDER BY n.place
    ) || CASE WHEN NOT a.attnotnull THEN ARRAY['the fence column can be null'] ELSE '{}' END AS open_by
FROM member AS m
JOIN pg_catalog.pg_class AS c ON c.oid = m.relid
JOIN fence_column AS f ON f.relid = m.relid
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = f.attnum;

COMMENT ON VIEW fence_protected IS
'Every protected table and every partition and child of one, with all that leaves it open.';
COMMENT ON COLUMN fence_protected.target IS
'The table.';
COMMENT ON COLUMN fence_protected.fence_column IS
'The column that holds the fence; NULL when no trigger names one.';
COMMENT ON COLUMN fence_protected.open_by IS
'What lets a write pass that proved no fence; empty when the table is closed.';

CREATE FUNCTION fence_stat(
    OUT kind text,
    OUT id bigint,
    OUT resource text,
    OUT claims bigint,
    OUT claims_stale bigint,
    OUT writes bigint,
    OUT writes_stale bigint,
    OUT unclaimed bigint,
    OUT unfenced_refused bigint,
    OUT last_stale_at timestamptz,
    OUT last_stale_fence bigint,
    OUT stored_fence_then bigint
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_fence_stat'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 100;

COMMENT ON FUNCTION fence_stat() IS
'What pg_stat_fence shows.';

CREATE FUNCTION pg_stat_fence_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'pg_fence_stat_reset'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION pg_stat_fence_reset() IS
'Forgets what was counted in this database.';

-- Two sessions that count a table for the first time at the same moment can each make an entry.
CREATE VIEW pg_stat_fence AS
SELECT
    s.kind,
    CASE WHEN s.kind = 'table' THEN c.oid::regclass END AS target,
    s.resource,
    pg_catalog.sum(s.claims)::bigint AS claims,
    pg_catalog.sum(s.claims_stale)::bigint AS claims_stale,
    pg_catalog.sum(s.writes)::bigint AS writes,
    pg_catalog.sum(s.writes_stale)::bigint AS writes_stale,
    pg_catalog.sum(s.unclaimed)::bigint AS unclaimed,
    pg_catalog.sum(s.unfenced_refused)::bigint AS unfenced_refused,
    pg_catalog.max(s.last_stale_at) AS last_stale_at,
    (pg_catalog.array_agg(s.last_stale_fence ORDER BY s.last_stale_at DESC NULLS LAST))[1] AS last_stale_fence,
    (pg_catalog.array_agg(s.stored_fence_then ORDER BY s.last_stale_at DESC NULLS LAST))[1] AS stored_fence_then
FROM fence_stat() AS s
LEFT JOIN pg_catalog.pg_class AS c ON s.kind = 'table' AND c.oid::bigint = s.id
-- A table that was dropped is not shown.
WHERE s.kind IS DISTINCT FROM 'table' OR c.oid IS NOT NULL
GROUP BY s.kind, s.id, c.oid, s.resource;

COMMENT ON VIEW pg_stat_fence IS
'Calls on each table and guard since the server started or the counts were reset, rolled back or not.';
COMMENT ON COLUMN pg_stat_fence.kind IS
'table or guard; other tables and other guards add up those that found no place.';
COMMENT ON COLUMN pg_stat_fence.target IS
'The table.';
COMMENT ON COLUMN pg_stat_fence.resource IS
'The name of the guard, at most 128 bytes of it.';
COMMENT ON COLUMN pg_stat_fence.claims IS
'Claims that stamped or found their fence; transactions that the guard let in.';
COMMENT ON COLUMN pg_stat_fence.claims_stale IS
'Claims and guards that a newer fence refused.';
COMMENT ON COLUMN pg_stat_fence.writes IS
'Updates, fenced writes and deletes.';
COMMENT ON COLUMN pg_stat_fence.writes_stale IS
'The same, refused because of a newer fence.';
COMMENT ON COLUMN pg_stat_fence.unclaimed IS
'Writes that were refused because their fence had not claimed the row.';
COMMENT ON COLUMN pg_stat_fence.unfenced_refused IS
'Writes on a protected table that were refused because they proved no fence.';
COMMENT ON COLUMN pg_stat_fence.last_stale_at IS
'When the newest stale call was.';
COMMENT ON COLUMN pg_stat_fence.last_stale_fence IS
'The fence of that call.';
COMMENT ON COLUMN pg_stat_fence.stored_fence_then IS
'The newer fence that was stored at that moment.';

GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, "any", bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, text, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, "any", bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, text, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, "any", bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, text, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, "any", bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, text, bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, "any", bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, text, bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, "any", bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, text, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_reset(regclass, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_reset(regclass, text, bigint, name) TO PUBLIC;

GRANT EXECUTE ON FUNCTION fence_protect(regclass, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_unprotect(regclass) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_use(bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_refuses_update(bigint, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_refuses_delete(bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_refuses_insert(bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_refuse() TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_moves() TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_trigger_column(pg_node_tree, smallint) TO PUBLIC;
GRANT SELECT ON fence_protected TO PUBLIC;

-- The names of guards and the fences are for those who watch the server.
REVOKE ALL ON FUNCTION fence_stat() FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_stat_fence_reset() FROM PUBLIC;
REVOKE ALL ON TABLE pg_stat_fence FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fence_stat() TO pg_monitor;
GRANT EXECUTE ON FUNCTION fence_stat() TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_stat() TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION pg_stat_fence_reset() TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION pg_stat_fence_reset() TO pg_database_owner WITH GRANT OPTION;
GRANT SELECT ON TABLE pg_stat_fence TO pg_monitor;
GRANT SELECT ON TABLE pg_stat_fence TO @extowner@ WITH GRANT OPTION;
GRANT SELECT ON TABLE pg_stat_fence TO pg_database_owner WITH GRANT OPTION;

-- To the owner of the extension and to that of the database: a superuser who restores a dump of the database owner's
-- creates the extension, and the database owner dumps one that a superuser has created.
-- INSERT is what pg_restore needs. Whoever has it could only add guards, which fence_guard_reset() lets them do anyway.
REVOKE ALL ON TABLE fence_guards FROM PUBLIC;
GRANT SELECT, INSERT ON TABLE fence_guards TO @extowner@;
GRANT SELECT, INSERT ON TABLE fence_guards TO pg_database_owner;

REVOKE ALL ON FUNCTION fenced_guard(text, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION fence_guard_forget(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION fence_guard_reset(text, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_forget(bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_forget(bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_reset(text, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_reset(text, bigint) TO pg_database_owner WITH GRANT OPTION;
