/* The SQL of pg_fence 0.1.0: CREATE EXTENSION pg_fence runs it.
 *
 * Every function runs with the rights of its caller (the guards' write the table of the guards, which nobody else may,
 * with the rights of its owner), takes NULL to explain it, and writes, so it is volatile and not for parallel workers. What each does is in the README. The key comes as any type, or as text so that an untyped
 * parameter finds a function too; it is read as the type of the primary key.
 */

\echo Use "CREATE EXTENSION pg_fence" to load this file. \quit

CREATE FUNCTION fenced_claim(
    target anyelement,
    key "any",
    fence bigint,
    fence_column name DEFAULT 'fence'
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
    fence bigint,
    fence_column name DEFAULT 'fence'
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
    fence bigint,
    fence_column name DEFAULT 'fence'
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
    fence bigint,
    fence_column name DEFAULT 'fence'
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
    fence bigint,
    fence_column name DEFAULT 'fence'
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
    fence bigint,
    fence_column name DEFAULT 'fence'
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
    patch jsonb,
    fence_column name DEFAULT 'fence'
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
    patch jsonb,
    fence_column name DEFAULT 'fence'
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
    patch jsonb,
    fence_column name DEFAULT 'fence'
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
    patch jsonb,
    fence_column name DEFAULT 'fence'
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
    patch jsonb,
    fence_column name DEFAULT 'fence'
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
    patch jsonb,
    fence_column name DEFAULT 'fence'
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
    fence bigint,
    fence_column name DEFAULT 'fence'
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
    fence bigint,
    fence_column name DEFAULT 'fence'
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

GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_reset(regclass, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_reset(regclass, text, bigint, name) TO PUBLIC;

-- INSERT is what pg_restore needs. Whoever has it could only add guards, which fence_guard_reset() lets them do anyway.
REVOKE ALL ON TABLE fence_guards FROM PUBLIC;
GRANT SELECT, INSERT ON TABLE fence_guards TO @extowner@;

REVOKE ALL ON FUNCTION fenced_guard(text, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION fence_guard_forget(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION fence_guard_reset(text, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_forget(bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_reset(text, bigint) TO @extowner@ WITH GRANT OPTION;
