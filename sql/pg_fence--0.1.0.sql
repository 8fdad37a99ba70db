/* The SQL of pg_fence 0.1.0: CREATE EXTENSION pg_fence runs it.
 *
 * Schemas: what users call, and the two views, are created in the extension's own schema. The table of the guards and
 * the functions of triggers and views are in fence_internals. A dump carries the triggers of protected tables and the rows
 * of the guards, so the signatures and columns in fence_internals never change.
 *
 * Rights: every function runs with the rights of its caller, except those of guards: they write the table of the guards,
 * which nobody else may write, with the rights of its owner.
 *
 * Attributes: functions are CALLED ON NULL INPUT so that an error can name the null argument, and VOLATILE and PARALLEL
 * UNSAFE because they write.
 *
 * Overloads: a key is "any", or text so that an untyped parameter finds a function too; it is read as the type of the
 * primary key. Each of the 18 signatures on rows is written again with fence_column, and 16 of them with owner and
 * owner_column behind it. One signature with defaults would be shorter, but the server parses the text of a default again
 * for each call that is not prepared, which was a seventh of the cost of a claim. A test compares each with the shorter one.
 *
 * Names: operators and functions are qualified. The server picks the best match of all schemas in the search path, so a
 * planted one with exactly the types of the arguments would win. Types and collations are looked up in pg_catalog first.
 */

\echo Use "CREATE EXTENSION pg_fence" to load this file. \quit

-- Not IF NOT EXISTS: a schema that somebody else has made is his, and so is what he plants in it.
CREATE SCHEMA fence_internals;

COMMENT ON SCHEMA fence_internals IS
'What pg_fence keeps and calls itself: the guards, and the functions of triggers and views.';

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
    key "any",
    fence bigint,
    fence_column name,
    owner text
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim(anyelement, "any", bigint, name, text) IS
'Stamps the fence on a row and returns the row; no row when a newer fence is stored. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_claim(
    target anyelement,
    key "any",
    fence bigint,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim(anyelement, "any", bigint, name, text, name) IS
'Stamps the fence on a row and returns the row; no row when a newer fence is stored. An equal fence of another owner is refused.';

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

CREATE FUNCTION fenced_claim(
    target anyelement,
    key text,
    fence bigint,
    fence_column name,
    owner text
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim(anyelement, text, bigint, name, text) IS
'Stamps the fence on a row and returns the row; no row when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim(
    target anyelement,
    key text,
    fence bigint,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim(anyelement, text, bigint, name, text, name) IS
'Stamps the fence on a row and returns the row; no row when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim_or_insert(
    target anyelement,
    key "any",
    fence bigint,
    initial jsonb
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_or_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim_or_insert(anyelement, "any", bigint, jsonb) IS
'Stamps the fence on a row and returns the row, which is inserted with the initial values where there is none; no row when a newer fence is stored.';

CREATE FUNCTION fenced_claim_or_insert(
    target anyelement,
    key "any",
    fence bigint,
    initial jsonb,
    fence_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_or_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim_or_insert(anyelement, "any", bigint, jsonb, name) IS
'Stamps the fence on a row and returns the row, which is inserted with the initial values where there is none; no row when a newer fence is stored.';

CREATE FUNCTION fenced_claim_or_insert(
    target anyelement,
    key "any",
    fence bigint,
    initial jsonb,
    fence_column name,
    owner text
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_or_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim_or_insert(anyelement, "any", bigint, jsonb, name, text) IS
'Stamps the fence on a row and returns the row, which is inserted with the initial values where there is none; no row when a newer fence is stored. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_claim_or_insert(
    target anyelement,
    key "any",
    fence bigint,
    initial jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_or_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim_or_insert(anyelement, "any", bigint, jsonb, name, text, name) IS
'Stamps the fence on a row and returns the row, which is inserted with the initial values where there is none; no row when a newer fence is stored. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_claim_or_insert(
    target anyelement,
    key text,
    fence bigint,
    initial jsonb
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_or_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim_or_insert(anyelement, text, bigint, jsonb) IS
'Stamps the fence on a row and returns the row, which is inserted with the initial values where there is none; no row when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim_or_insert(
    target anyelement,
    key text,
    fence bigint,
    initial jsonb,
    fence_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_or_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim_or_insert(anyelement, text, bigint, jsonb, name) IS
'Stamps the fence on a row and returns the row, which is inserted with the initial values where there is none; no row when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim_or_insert(
    target anyelement,
    key text,
    fence bigint,
    initial jsonb,
    fence_column name,
    owner text
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_or_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim_or_insert(anyelement, text, bigint, jsonb, name, text) IS
'Stamps the fence on a row and returns the row, which is inserted with the initial values where there is none; no row when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim_or_insert(
    target anyelement,
    key text,
    fence bigint,
    initial jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_or_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_claim_or_insert(anyelement, text, bigint, jsonb, name, text, name) IS
'Stamps the fence on a row and returns the row, which is inserted with the initial values where there is none; no row when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

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
    key "any",
    fence bigint,
    fence_column name,
    owner text
)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'pg_fence_claim_json'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_claim_json(regclass, "any", bigint, name, text) IS
'Stamps the fence on a row and returns the row as jsonb; NULL when a newer fence is stored. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_claim_json(
    target regclass,
    key "any",
    fence bigint,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'pg_fence_claim_json'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_claim_json(regclass, "any", bigint, name, text, name) IS
'Stamps the fence on a row and returns the row as jsonb; NULL when a newer fence is stored. An equal fence of another owner is refused.';

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

CREATE FUNCTION fenced_claim_json(
    target regclass,
    key text,
    fence bigint,
    fence_column name,
    owner text
)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'pg_fence_claim_json'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_claim_json(regclass, text, bigint, name, text) IS
'Stamps the fence on a row and returns the row as jsonb; NULL when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim_json(
    target regclass,
    key text,
    fence bigint,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'pg_fence_claim_json'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_claim_json(regclass, text, bigint, name, text, name) IS
'Stamps the fence on a row and returns the row as jsonb; NULL when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

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

CREATE FUNCTION fenced_claim_many(
    target anyelement,
    keys "any",
    fence bigint,
    fence_column name,
    owner text
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 10;

COMMENT ON FUNCTION fenced_claim_many(anyelement, "any", bigint, name, text) IS
'Stamps the fence on many rows and returns them in the order of the key; a row with a newer fence is absent. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_claim_many(
    target anyelement,
    keys "any",
    fence bigint,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 10;

COMMENT ON FUNCTION fenced_claim_many(anyelement, "any", bigint, name, text, name) IS
'Stamps the fence on many rows and returns them in the order of the key; a row with a newer fence is absent. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_claim_many(
    target anyelement,
    keys text,
    fence bigint,
    fence_column name,
    owner text
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 10;

COMMENT ON FUNCTION fenced_claim_many(anyelement, text, bigint, name, text) IS
'Stamps the fence on many rows and returns them in the order of the key; a row with a newer fence is absent. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_claim_many(
    target anyelement,
    keys text,
    fence bigint,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_claim_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 10;

COMMENT ON FUNCTION fenced_claim_many(anyelement, text, bigint, name, text, name) IS
'Stamps the fence on many rows and returns them in the order of the key; a row with a newer fence is absent. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

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
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_update'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_update(regclass, "any", bigint, jsonb, name, text) IS
'Sets columns of a row that the fence has claimed; false when a newer fence is stored. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_update(
    target regclass,
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_update'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_update(regclass, "any", bigint, jsonb, name, text, name) IS
'Sets columns of a row that the fence has claimed; false when a newer fence is stored. An equal fence of another owner is refused.';

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

CREATE FUNCTION fenced_update(
    target regclass,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_update'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_update(regclass, text, bigint, jsonb, name, text) IS
'Sets columns of a row that the fence has claimed; false when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_update(
    target regclass,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_update'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_update(regclass, text, bigint, jsonb, name, text, name) IS
'Sets columns of a row that the fence has claimed; false when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

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
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_update_returning'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb, name, text) IS
'Sets columns of a row that the fence has claimed and returns the row; no row when a newer fence is stored. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_update_returning(
    target anyelement,
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_update_returning'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb, name, text, name) IS
'Sets columns of a row that the fence has claimed and returns the row; no row when a newer fence is stored. An equal fence of another owner is refused.';

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

CREATE FUNCTION fenced_update_returning(
    target anyelement,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_update_returning'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb, name, text) IS
'Sets columns of a row that the fence has claimed and returns the row; no row when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_update_returning(
    target anyelement,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'pg_fence_update_returning'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb, name, text, name) IS
'Sets columns of a row that the fence has claimed and returns the row; no row when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

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
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_write'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_write(regclass, "any", bigint, jsonb, name, text) IS
'Stamps the fence and sets columns at once, for writes that depend on nothing read; false when a newer fence is stored. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_write(
    target regclass,
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_write'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_write(regclass, "any", bigint, jsonb, name, text, name) IS
'Stamps the fence and sets columns at once, for writes that depend on nothing read; false when a newer fence is stored. An equal fence of another owner is refused.';

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

CREATE FUNCTION fenced_write(
    target regclass,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_write'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_write(regclass, text, bigint, jsonb, name, text) IS
'Stamps the fence and sets columns at once, for writes that depend on nothing read; false when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_write(
    target regclass,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_write'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_write(regclass, text, bigint, jsonb, name, text, name) IS
'Stamps the fence and sets columns at once, for writes that depend on nothing read; false when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_upsert(
    target regclass,
    key "any",
    fence bigint,
    patch jsonb
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_upsert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_upsert(regclass, "any", bigint, jsonb) IS
'Stamps the fence and sets columns at once, inserting the row where there is none; false when a newer fence is stored.';

CREATE FUNCTION fenced_upsert(
    target regclass,
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_upsert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_upsert(regclass, "any", bigint, jsonb, name) IS
'Stamps the fence and sets columns at once, inserting the row where there is none; false when a newer fence is stored.';

CREATE FUNCTION fenced_upsert(
    target regclass,
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_upsert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_upsert(regclass, "any", bigint, jsonb, name, text) IS
'Stamps the fence and sets columns at once, inserting the row where there is none; false when a newer fence is stored. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_upsert(
    target regclass,
    key "any",
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_upsert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_upsert(regclass, "any", bigint, jsonb, name, text, name) IS
'Stamps the fence and sets columns at once, inserting the row where there is none; false when a newer fence is stored. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_upsert(
    target regclass,
    key text,
    fence bigint,
    patch jsonb
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_upsert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_upsert(regclass, text, bigint, jsonb) IS
'Stamps the fence and sets columns at once, inserting the row where there is none; false when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_upsert(
    target regclass,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_upsert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_upsert(regclass, text, bigint, jsonb, name) IS
'Stamps the fence and sets columns at once, inserting the row where there is none; false when a newer fence is stored. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_upsert(
    target regclass,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_upsert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_upsert(regclass, text, bigint, jsonb, name, text) IS
'Stamps the fence and sets columns at once, inserting the row where there is none; false when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_upsert(
    target regclass,
    key text,
    fence bigint,
    patch jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_upsert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_upsert(regclass, text, bigint, jsonb, name, text, name) IS
'Stamps the fence and sets columns at once, inserting the row where there is none; false when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

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
    key "any",
    fence bigint,
    fence_column name,
    owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_delete'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_delete(regclass, "any", bigint, name, text) IS
'Deletes a row that the fence has claimed; false when a newer fence is stored. An equal fence of another owner is refused.';

CREATE FUNCTION fenced_delete(
    target regclass,
    key "any",
    fence bigint,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_delete'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_delete(regclass, "any", bigint, name, text, name) IS
'Deletes a row that the fence has claimed; false when a newer fence is stored. An equal fence of another owner is refused.';

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

CREATE FUNCTION fenced_delete(
    target regclass,
    key text,
    fence bigint,
    fence_column name,
    owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_delete'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_delete(regclass, text, bigint, name, text) IS
'Deletes a row that the fence has claimed; false when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_delete(
    target regclass,
    key text,
    fence bigint,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_delete'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_delete(regclass, text, bigint, name, text, name) IS
'Deletes a row that the fence has claimed; false when a newer fence is stored. An equal fence of another owner is refused. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_update_many(
    target regclass,
    keys "any",
    fences bigint[],
    patches jsonb
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_update_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_update_many(regclass, "any", bigint[], jsonb) IS
'Sets columns of many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_update_many(
    target regclass,
    keys "any",
    fences bigint[],
    patches jsonb,
    fence_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_update_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_update_many(regclass, "any", bigint[], jsonb, name) IS
'Sets columns of many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_update_many(
    target regclass,
    keys "any",
    fences bigint[],
    patches jsonb,
    fence_column name,
    owner text
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_update_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_update_many(regclass, "any", bigint[], jsonb, name, text) IS
'Sets columns of many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_update_many(
    target regclass,
    keys "any",
    fences bigint[],
    patches jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_update_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_update_many(regclass, "any", bigint[], jsonb, name, text, name) IS
'Sets columns of many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_update_many(
    target regclass,
    keys text,
    fences bigint[],
    patches jsonb
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_update_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_update_many(regclass, text, bigint[], jsonb) IS
'Sets columns of many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_update_many(
    target regclass,
    keys text,
    fences bigint[],
    patches jsonb,
    fence_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_update_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_update_many(regclass, text, bigint[], jsonb, name) IS
'Sets columns of many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_update_many(
    target regclass,
    keys text,
    fences bigint[],
    patches jsonb,
    fence_column name,
    owner text
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_update_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_update_many(regclass, text, bigint[], jsonb, name, text) IS
'Sets columns of many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_update_many(
    target regclass,
    keys text,
    fences bigint[],
    patches jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_update_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_update_many(regclass, text, bigint[], jsonb, name, text, name) IS
'Sets columns of many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_write_many(
    target regclass,
    keys "any",
    fences bigint[],
    patches jsonb
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_write_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_write_many(regclass, "any", bigint[], jsonb) IS
'Stamps the fences and sets columns of many rows in one statement, in the order of the key; a verdict on each: written, stale, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_write_many(
    target regclass,
    keys "any",
    fences bigint[],
    patches jsonb,
    fence_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_write_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_write_many(regclass, "any", bigint[], jsonb, name) IS
'Stamps the fences and sets columns of many rows in one statement, in the order of the key; a verdict on each: written, stale, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_write_many(
    target regclass,
    keys "any",
    fences bigint[],
    patches jsonb,
    fence_column name,
    owner text
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_write_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_write_many(regclass, "any", bigint[], jsonb, name, text) IS
'Stamps the fences and sets columns of many rows in one statement, in the order of the key; a verdict on each: written, stale, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_write_many(
    target regclass,
    keys "any",
    fences bigint[],
    patches jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_write_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_write_many(regclass, "any", bigint[], jsonb, name, text, name) IS
'Stamps the fences and sets columns of many rows in one statement, in the order of the key; a verdict on each: written, stale, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_write_many(
    target regclass,
    keys text,
    fences bigint[],
    patches jsonb
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_write_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_write_many(regclass, text, bigint[], jsonb) IS
'Stamps the fences and sets columns of many rows in one statement, in the order of the key; a verdict on each: written, stale, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_write_many(
    target regclass,
    keys text,
    fences bigint[],
    patches jsonb,
    fence_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_write_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_write_many(regclass, text, bigint[], jsonb, name) IS
'Stamps the fences and sets columns of many rows in one statement, in the order of the key; a verdict on each: written, stale, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_write_many(
    target regclass,
    keys text,
    fences bigint[],
    patches jsonb,
    fence_column name,
    owner text
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_write_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_write_many(regclass, text, bigint[], jsonb, name, text) IS
'Stamps the fences and sets columns of many rows in one statement, in the order of the key; a verdict on each: written, stale, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_write_many(
    target regclass,
    keys text,
    fences bigint[],
    patches jsonb,
    fence_column name,
    owner text,
    owner_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_write_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_write_many(regclass, text, bigint[], jsonb, name, text, name) IS
'Stamps the fences and sets columns of many rows in one statement, in the order of the key; a verdict on each: written, stale, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_delete_many(
    target regclass,
    keys "any",
    fences bigint[]
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_delete_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_delete_many(regclass, "any", bigint[]) IS
'Deletes many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_delete_many(
    target regclass,
    keys "any",
    fences bigint[],
    fence_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_delete_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_delete_many(regclass, "any", bigint[], name) IS
'Deletes many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_delete_many(
    target regclass,
    keys "any",
    fences bigint[],
    fence_column name,
    owner text
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_delete_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_delete_many(regclass, "any", bigint[], name, text) IS
'Deletes many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_delete_many(
    target regclass,
    keys "any",
    fences bigint[],
    fence_column name,
    owner text,
    owner_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_delete_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_delete_many(regclass, "any", bigint[], name, text, name) IS
'Deletes many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence.';

CREATE FUNCTION fenced_delete_many(
    target regclass,
    keys text,
    fences bigint[]
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_delete_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_delete_many(regclass, text, bigint[]) IS
'Deletes many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_delete_many(
    target regclass,
    keys text,
    fences bigint[],
    fence_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_delete_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_delete_many(regclass, text, bigint[], name) IS
'Deletes many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_delete_many(
    target regclass,
    keys text,
    fences bigint[],
    fence_column name,
    owner text
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_delete_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_delete_many(regclass, text, bigint[], name, text) IS
'Deletes many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fenced_delete_many(
    target regclass,
    keys text,
    fences bigint[],
    fence_column name,
    owner text,
    owner_column name
)
RETURNS TABLE (ordinal bigint, verdict text, stored_fence bigint)
AS 'MODULE_PATHNAME', 'pg_fence_delete_many'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1000;

COMMENT ON FUNCTION fenced_delete_many(regclass, text, bigint[], name, text, name) IS
'Deletes many rows, each claimed by its fence, in one statement, in the order of the key; a verdict on each: written, stale, unclaimed, missing, outlived, blocked or duplicate_fence. Key as text or as an untyped parameter.';

CREATE FUNCTION fence_reset(
    target regclass,
    key "any",
    new_fence bigint,
    fence_column name DEFAULT 'fence',
    owner_column name DEFAULT NULL
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_reset'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_reset(regclass, "any", bigint, name, name) IS
'Stores a fence whatever is stored, as nobody''s, and returns what was; 0 is never claimed. For the owner of the table.';

CREATE FUNCTION fence_reset(
    target regclass,
    key text,
    new_fence bigint,
    fence_column name DEFAULT 'fence',
    owner_column name DEFAULT NULL
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_reset'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_reset(regclass, text, bigint, name, name) IS
'Stores a fence whatever is stored, as nobody''s, and returns what was; 0 is never claimed. For the owner of the table. Key as text or as an untyped parameter.';

CREATE TABLE fence_internals.guards (
    resource text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL CHECK (fence OPERATOR(pg_catalog.>=) 0::bigint),
    owner text
);

COMMENT ON TABLE fence_internals.guards IS
'The newest fence of each named resource. Written by fenced_guard(), fence_guard_forget() and fence_guard_reset() alone.';
COMMENT ON COLUMN fence_internals.guards.resource IS
'The name that is passed to fenced_guard().';
COMMENT ON COLUMN fence_internals.guards.fence IS
'The newest fence that was admitted; 0 is none.';
COMMENT ON COLUMN fence_internals.guards.owner IS
'The owner that was passed with that fence; NULL where none was.';

CREATE FUNCTION fence_internals.refuse_guards()
RETURNS trigger
AS 'MODULE_PATHNAME', 'pg_fence_refuse_guards'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.refuse_guards() IS
'Refuses a write to the table of the guards that is not one of their functions''.';

-- Not on INSERT, by which a restore brings the guards.
CREATE TRIGGER refuse_guards
BEFORE UPDATE OR DELETE OR TRUNCATE ON fence_internals.guards
FOR EACH STATEMENT
EXECUTE FUNCTION fence_internals.refuse_guards();

-- These three columns for ever: a dump names the extension without its version, so it must fit every one.
SELECT pg_catalog.pg_extension_config_dump('fence_internals.guards', '');

CREATE FUNCTION fenced_guard(
    resource text,
    fence bigint
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_guard'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_guard(text, bigint) IS
'Fences the transaction: refuses a fence that is older than the newest of the resource, and a life that is not the server''s, and keeps newer fences out to its end. Returns the fence.';

CREATE FUNCTION fenced_guard(
    resource text,
    fence bigint,
    life text
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_guard'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_guard(text, bigint, text) IS
'Fences the transaction: refuses a fence that is older than the newest of the resource, and a life that is not the server''s, and keeps newer fences out to its end. Returns the fence.';

CREATE FUNCTION fenced_guard(
    resource text,
    fence bigint,
    life text,
    owner text
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_guard'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fenced_guard(text, bigint, text, text) IS
'Fences the transaction: refuses a fence that is older than the newest of the resource, and a life that is not the server''s, and keeps newer fences out to its end. Returns the fence. An equal fence of another owner is refused.';

CREATE FUNCTION fence_life()
RETURNS text
AS 'MODULE_PATHNAME', 'pg_fence_life'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_life() IS
'Returns a text that names the life of the server: another one after each start, promotion and restore.';

CREATE FUNCTION fence_new_life()
RETURNS text
AS 'MODULE_PATHNAME', 'pg_fence_new_life'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_new_life() IS
'Begins another life of the server, in which no earlier claim counts, and returns its name. For operators.';

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
'Stores a fence at a guard whatever is stored, as nobody''s, and returns what was; 0 is never stamped.';

CREATE FUNCTION fence_guard_evict(
    resource text,
    fence bigint
)
RETURNS integer[]
AS 'MODULE_PATHNAME', 'pg_fence_guard_evict'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_guard_evict(text, bigint) IS
'Terminates the sessions that hold a guard with an older fence, and returns their process IDs. For operators.';

CREATE FUNCTION fence_internals.guard_holders(
    OUT resource text,
    OUT pid integer,
    OUT fence bigint,
    OUT waiters bigint,
    OUT prepared xid
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_fence_guard_holders'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 10;

COMMENT ON FUNCTION fence_internals.guard_holders() IS
'What fence_guard_blockers shows.';

CREATE VIEW fence_guard_blockers AS
SELECT
    h.resource,
    h.pid,
    h.fence,
    CASE WHEN h.pid IS NULL THEN 'prepared' ELSE a.state END AS state,
    COALESCE(a.xact_start, p.prepared) AS xact_start,
    h.waiters,
    p.gid
FROM fence_internals.guard_holders() AS h
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) h.pid
LEFT JOIN pg_catalog.pg_prepared_xacts AS p ON p.transaction OPERATOR(pg_catalog.=) h.prepared;

COMMENT ON VIEW fence_guard_blockers IS
'The transactions that hold a guard: they keep newer fences out, and other fences while they are alone. Each caller sees those whose sessions pg_stat_activity shows to it.';
COMMENT ON COLUMN fence_guard_blockers.resource IS
'The name of the guard; NULL where it has no row, because fence_guard_forget() has removed it or it is just being made.';
COMMENT ON COLUMN fence_guard_blockers.pid IS
'The process ID of the session; NULL for a prepared transaction.';
COMMENT ON COLUMN fence_guard_blockers.fence IS
'The fence that it holds the guard with; NULL while it is being admitted.';
COMMENT ON COLUMN fence_guard_blockers.state IS
'As in pg_stat_activity: active, idle in transaction and others; prepared for a prepared transaction.';
COMMENT ON COLUMN fence_guard_blockers.xact_start IS
'When the transaction began, or was prepared.';
COMMENT ON COLUMN fence_guard_blockers.waiters IS
'How many sessions wait for the guard.';
COMMENT ON COLUMN fence_guard_blockers.gid IS
'The name of a prepared transaction, for COMMIT PREPARED and ROLLBACK PREPARED.';

-- Leases. Rows are kept after a release. The table and the sequence are written by the functions below alone, which act with
-- the rights of their owner, whatever the caller may.
CREATE TABLE fence_internals.leases (
    name text COLLATE "C" PRIMARY KEY
        CHECK (pg_catalog.octet_length(name) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(name) OPERATOR(pg_catalog.<=) 1024),
    owner text COLLATE "C"
        CHECK (pg_catalog.octet_length(owner) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(owner) OPERATOR(pg_catalog.<=) 512),
    fence bigint NOT NULL CHECK (fence OPERATOR(pg_catalog.>=) 1::bigint AND fence OPERATOR(pg_catalog.<=) 9007199254740991),
    granted_us bigint NOT NULL,
    deadline_us bigint NOT NULL,
    limit_us bigint NOT NULL,
    delay_us bigint NOT NULL,
    epoch bigint NOT NULL,
    offset_us bigint NOT NULL
)
-- Room for the versions of a few cycles beside the rows, which keeps a lock's row on its page.
WITH (fillfactor = 85);

COMMENT ON TABLE fence_internals.leases IS
'The locks that were acquired here. Written by the fencelock_* functions alone; the view fencelocks shows it.';
COMMENT ON COLUMN fence_internals.leases.name IS
'The name of the lock.';
COMMENT ON COLUMN fence_internals.leases.owner IS
'Who has it, or had it until the lease expired; NULL after a release.';
COMMENT ON COLUMN fence_internals.leases.fence IS
'The fence of the last grant.';
COMMENT ON COLUMN fence_internals.leases.granted_us IS
'When it was granted, in microseconds on the steady clock of the boot.';
COMMENT ON COLUMN fence_internals.leases.deadline_us IS
'When the lease ends.';
COMMENT ON COLUMN fence_internals.leases.limit_us IS
'The latest deadline that extensions can reach; 9223372036854775807 is none.';
COMMENT ON COLUMN fence_internals.leases.delay_us IS
'How long nobody gets the lock after the lease has expired.';
COMMENT ON COLUMN fence_internals.leases.epoch IS
'The boot of the host on whose clock the times are; 0 is not known.';
COMMENT ON COLUMN fence_internals.leases.offset_us IS
'Unix time less that clock, in microseconds, when the row was written.';

CREATE SEQUENCE fence_internals.lease_fences AS bigint MAXVALUE 9007199254740991;

COMMENT ON SEQUENCE fence_internals.lease_fences IS
'The last fence that was issued here. Set by fencelock_acquire() and fencelock_raise().';

-- Called once, so that it has a last value from the start.
SELECT pg_catalog.setval('fence_internals.lease_fences', 1);

-- These nine columns for ever, as those of the guards.
SELECT pg_catalog.pg_extension_config_dump('fence_internals.leases', '');
SELECT pg_catalog.pg_extension_config_dump('fence_internals.lease_fences', '');

CREATE FUNCTION fencelock_acquire(
    lock text,
    owner text,
    ttl_ms bigint,
    wait_ms bigint DEFAULT NULL,
    retry boolean DEFAULT false,
    maxhold_ms bigint DEFAULT NULL,
    delay_ms bigint DEFAULT NULL
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_lease_acquire'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fencelock_acquire(text, text, bigint, bigint, boolean, bigint, bigint) IS
'Acquires a lock and returns its fence; NULL when it is busy, or when the wait has expired.';

CREATE PROCEDURE fencelock_wait(
    lock text,
    owner text,
    ttl_ms bigint,
    wait_ms bigint,
    INOUT fence bigint DEFAULT NULL
)
AS 'MODULE_PATHNAME', 'pg_fence_lease_wait'
LANGUAGE c
SECURITY INVOKER;

COMMENT ON PROCEDURE fencelock_wait(text, text, bigint, bigint, bigint) IS
'Acquires a lock after a wait that holds back no vacuum; fence is NULL when the wait has expired.';

CREATE FUNCTION fencelock_extend(
    lock text,
    owner text,
    ttl_ms bigint
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_lease_extend'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fencelock_extend(text, text, bigint) IS
'Extends the lease to so many milliseconds from now and returns those that are left; 0 when it is not the caller''s.';

CREATE FUNCTION fencelock_extend(
    lock text,
    owner text,
    ttl_ms bigint,
    fence bigint
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_lease_extend'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fencelock_extend(text, text, bigint, bigint) IS
'Extends the lease of this fence to so many milliseconds from now and returns those that are left; 0 when it is not the caller''s.';

CREATE FUNCTION fencelock_release(
    lock text,
    owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_lease_release'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fencelock_release(text, text) IS
'Releases a lock, which is free at COMMIT; false when it is not the caller''s.';

CREATE FUNCTION fencelock_release(
    lock text,
    owner text,
    fence bigint
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_lease_release'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fencelock_release(text, text, bigint) IS
'Releases the lock of this fence, which is free at COMMIT; false when it is not the caller''s.';

CREATE FUNCTION fencelock_check(
    lock text,
    fence bigint
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_lease_check'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fencelock_check(text, bigint) IS
'Whether this fence is the live hold of the lock now: a hint.';

CREATE FUNCTION fencelock_inspect(
    lock text,
    OUT state text,
    OUT owner text,
    OUT fence bigint,
    OUT ttl_ms bigint,
    OUT held_ms bigint,
    OUT maxhold_left_ms bigint,
    OUT waiters bigint
)
RETURNS record
AS 'MODULE_PATHNAME', 'pg_fence_lease_inspect'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fencelock_inspect(text) IS
'Who has a lock; all NULL when it is free. The owner is for those who may acquire locks.';

CREATE FUNCTION fencelock_raise(
    fence bigint
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_lease_raise'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fencelock_raise(bigint) IS
'Issues no fence at or below this one from now on, not even after a rollback, and returns the last one.';

CREATE FUNCTION fencelock_free(
    lock text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_lease_free'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fencelock_free(text) IS
'Ends the lease of whoever has the lock, and the delay after one; false when there was none.';

CREATE FUNCTION fencelock_forget(
    older_than bigint
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_lease_forget'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fencelock_forget(bigint) IS
'Removes the rows of free locks with a fence below this one, up to 1,000 a call, and returns how many.';

CREATE FUNCTION fence_internals.leases(
    OUT lock text,
    OUT state text,
    OUT owner text,
    OUT fence bigint,
    OUT ttl_ms bigint,
    OUT held_ms bigint,
    OUT maxhold_left_ms bigint,
    OUT waiters bigint,
    OUT queue_classid bigint,
    OUT queue_objid bigint
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_fence_leases'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 100;

COMMENT ON FUNCTION fence_internals.leases() IS
'What fencelocks shows.';

CREATE VIEW fencelocks AS
WITH queues AS MATERIALIZED (
    -- The head of a queue has it, and may sleep; the others wait for it.
    SELECT
        l.classid::bigint AS classid,
        l.objid::bigint AS objid,
        pg_catalog.array_agg(l.pid ORDER BY l.granted DESC, l.waitstart) AS pids,
        pg_catalog.min(COALESCE(l.waitstart, a.query_start)) AS since
    FROM pg_catalog.pg_locks AS l
    LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) l.pid
    WHERE l.locktype OPERATOR(pg_catalog.=) 'userlock'
        AND l.objsubid OPERATOR(pg_catalog.=) 2::smallint
        AND l.database OPERATOR(pg_catalog.=) (
            SELECT d.oid
            FROM pg_catalog.pg_database AS d
            WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
        )
    GROUP BY l.classid, l.objid
)
SELECT
    s.lock,
    s.state,
    s.owner,
    s.fence,
    s.ttl_ms,
    s.held_ms,
    s.maxhold_left_ms,
    s.waiters,
    q.pids AS waiting_pids,
    q.since AS waiting_since
FROM fence_internals.leases() AS s
LEFT JOIN queues AS q
    ON q.classid OPERATOR(pg_catalog.=) s.queue_classid AND q.objid OPERATOR(pg_catalog.=) s.queue_objid;

COMMENT ON VIEW fencelocks IS
'The locks that are held or in their delay, and who waits for them.';
COMMENT ON COLUMN fencelocks.lock IS
'The name of the lock.';
COMMENT ON COLUMN fencelocks.state IS
'held, or delay after the lease has expired.';
COMMENT ON COLUMN fencelocks.owner IS
'The owner that the holder has chosen; NULL for roles that may neither acquire locks nor read all statistics.';
COMMENT ON COLUMN fencelocks.fence IS
'The fence of the grant.';
COMMENT ON COLUMN fencelocks.ttl_ms IS
'The milliseconds that are left of the lease.';
COMMENT ON COLUMN fencelocks.held_ms IS
'The milliseconds since the grant, or until the lease ended.';
COMMENT ON COLUMN fencelocks.maxhold_left_ms IS
'The milliseconds that are left of the longest hold; NULL without one.';
COMMENT ON COLUMN fencelocks.waiters IS
'How many sessions wait for the lock.';
COMMENT ON COLUMN fencelocks.waiting_pids IS
'Their process IDs, first in, first out.';
COMMENT ON COLUMN fencelocks.waiting_since IS
'When the first of them began.';

CREATE FUNCTION fence_protect(
    target regclass,
    fence_column name DEFAULT NULL,
    inserts text DEFAULT NULL,
    deletes text DEFAULT NULL,
    replicated text DEFAULT NULL,
    owner_column name DEFAULT NULL
)
RETURNS integer
AS 'MODULE_PATHNAME', 'pg_fence_protect'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_protect(regclass, name, text, text, text, name) IS
'Makes the triggers that refuse every write without a fence, and returns on how many tables. For the owner of the table.';

CREATE FUNCTION fence_unprotect(
    target regclass
)
RETURNS integer
AS 'MODULE_PATHNAME', 'pg_fence_unprotect'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_unprotect(regclass) IS
'Removes the triggers that fence_protect() made, and returns from how many tables. For the owner of the table.';

CREATE FUNCTION fence_use(
    fence bigint
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_use'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_use(bigint) IS
'Lets plain SQL of this transaction write those rows of protected tables that carry this fence. Returns the fence.';

CREATE FUNCTION fence_use(
    fence bigint,
    owner text
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_use'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_use(bigint, text) IS
'Lets plain SQL of this transaction write those rows of protected tables that carry this fence. Returns the fence. An equal fence of another owner is refused.';

CREATE FUNCTION fence_forget_deletions(
    target regclass,
    older_than interval
)
RETURNS bigint
AS 'MODULE_PATHNAME', 'pg_fence_forget_deletions'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_forget_deletions(regclass, interval) IS
'Forgets the remembered deletions that are older, and returns how many. For the owner of the table.';

-- The conditions of the triggers. Each is given all by which a write of a row can be judged, so that a dump of today's
-- triggers fits later versions: the table (the partition), the place of the row, the transaction that wrote its version,
-- the fence, and the owner of the fence where the table keeps one.
CREATE FUNCTION fence_internals.refuses_update(
    relation oid,
    row_id tid,
    written_by xid,
    old_fence bigint,
    new_fence bigint,
    old_owner text,
    new_owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_refuses_update'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.refuses_update(oid, tid, xid, bigint, bigint, text, text) IS
'Condition of the triggers that fence_protect() makes.';

CREATE FUNCTION fence_internals.refuses_delete(
    relation oid,
    row_id tid,
    written_by xid,
    old_fence bigint,
    old_owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_refuses_delete'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.refuses_delete(oid, tid, xid, bigint, text) IS
'Condition of the triggers that fence_protect() makes.';

CREATE FUNCTION fence_internals.refuses_insert(
    relation oid,
    row_id tid,
    new_fence bigint,
    new_owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_refuses_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.refuses_insert(oid, tid, bigint, text) IS
'Condition of the triggers that fence_protect() makes.';

CREATE FUNCTION fence_internals.refuses_unfenced_insert(
    relation oid,
    row_id tid,
    new_fence bigint,
    new_owner text
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_refuses_unfenced_insert'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.refuses_unfenced_insert(oid, tid, bigint, text) IS
'Condition of the triggers that fence_protect() makes for inserts => ''fenced''.';

-- The conditions of the triggers that remember deletions name what these read: the table of the deletions, the fence and the
-- key. So no other record is needed, and none of it can be dropped or altered under them.
CREATE FUNCTION fence_internals.has_key(
    deletions regclass,
    fence bigint,
    VARIADIC key "any"
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_has_key'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.has_key(regclass, bigint, VARIADIC "any") IS
'Condition of the triggers that fence_protect() makes for deletes => ''remembered''.';

CREATE FUNCTION fence_internals.changes_key(
    deletions regclass,
    old_fence bigint,
    new_fence bigint,
    VARIADIC keys "any"
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_changes_key'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.changes_key(regclass, bigint, bigint, VARIADIC "any") IS
'Condition of the triggers that fence_protect() makes for deletes => ''remembered''.';

-- A condition of the statements of row functions. It follows the comparison of the key and the fence, which cost less.
CREATE FUNCTION fence_internals.given()
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_fence_given'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
ROWS 1;

COMMENT ON FUNCTION fence_internals.given() IS
'The rows that a fenced function is changing, in its own statement; no row anywhere else.';

CREATE FUNCTION fence_internals.in_life(
    written_by xid
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'pg_fence_in_life'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE
COST 10;

COMMENT ON FUNCTION fence_internals.in_life(xid) IS
'Whether a version of a row was written since this server was started or promoted.';

CREATE FUNCTION fence_internals.refuse()
RETURNS trigger
AS 'MODULE_PATHNAME', 'pg_fence_refuse'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.refuse() IS
'Refuses a write: the triggers that fence_protect() makes.';

CREATE FUNCTION fence_internals.remember()
RETURNS trigger
AS 'MODULE_PATHNAME', 'pg_fence_remember'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.remember() IS
'Remembers a deletion, and refuses a new row whose key a newer fence has deleted: the triggers that fence_protect() makes for deletes => ''remembered''.';

CREATE FUNCTION fence_internals.keep_newer()
RETURNS trigger
AS 'MODULE_PATHNAME', 'pg_fence_keep_newer'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.keep_newer() IS
'Leaves a row as it is: the trigger that fence_protect() makes for replicated => ''newest''.';

CREATE FUNCTION fence_internals.trigger_column(
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

COMMENT ON FUNCTION fence_internals.trigger_column(pg_node_tree, smallint) IS
'The number of the fence column in the condition of a trigger that fence_protect() made, else NULL.';

CREATE FUNCTION fence_internals.trigger_owner(
    condition pg_node_tree,
    kind smallint
)
RETURNS smallint
AS 'MODULE_PATHNAME', 'pg_fence_trigger_owner'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.trigger_owner(pg_node_tree, smallint) IS
'The number of the column of the owner in such a condition, else NULL.';

CREATE FUNCTION fence_internals.trigger_inserts(
    condition pg_node_tree,
    kind smallint
)
RETURNS text
AS 'MODULE_PATHNAME', 'pg_fence_trigger_inserts'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.trigger_inserts(pg_node_tree, smallint) IS
'Which new rows a trigger on INSERT admits that fence_protect() made, plain or fenced, else NULL.';

CREATE FUNCTION fence_internals.trigger_deletions(
    condition pg_node_tree,
    kind smallint,
    OUT deletions regclass,
    OUT fence smallint,
    OUT key text
)
RETURNS record
AS 'MODULE_PATHNAME', 'pg_fence_trigger_deletions'
LANGUAGE c
VOLATILE
CALLED ON NULL INPUT
SECURITY INVOKER
PARALLEL UNSAFE;

COMMENT ON FUNCTION fence_internals.trigger_deletions(pg_node_tree, smallint) IS
'The table, and the numbers of the columns, that the condition of a trigger names which remembers deletions.';

CREATE VIEW fence_protected AS
WITH RECURSIVE ours AS (
    SELECT
        t.tgrelid,
        t.tgname,
        t.tgtype,
        CASE
            WHEN t.tgenabled OPERATOR(pg_catalog.=) 'A'::pg_catalog."char" THEN true
            WHEN t.tgenabled OPERATOR(pg_catalog.=) 'O'::pg_catalog."char"
                THEN pg_catalog.current_setting('session_replication_role') OPERATOR(pg_catalog.<>) 'replica'
            WHEN t.tgenabled OPERATOR(pg_catalog.=) 'R'::pg_catalog."char"
                THEN pg_catalog.current_setting('session_replication_role') OPERATOR(pg_catalog.=) 'replica'
            ELSE false
        END AS fires,
        t.tgenabled OPERATOR(pg_catalog.=) 'D'::pg_catalog."char" AS is_disabled,
        -- Row triggers have the condition on the fence column, the others none; none is for some columns only.
        fence_internals.trigger_column(t.tgqual, t.tgtype) AS fence_attnum,
        fence_internals.trigger_owner(t.tgqual, t.tgtype) AS owner_attnum,
        fence_internals.trigger_inserts(t.tgqual, t.tgtype) AS inserts,
        pg_catalog.cardinality(t.tgattr::smallint[]) OPERATOR(pg_catalog.=) 0
            AND (pg_catalog.mod(t.tgtype::integer, 2) OPERATOR(pg_catalog.=) 1)
                OPERATOR(pg_catalog.=) (fence_internals.trigger_column(t.tgqual, t.tgtype) IS NOT NULL)
            AND (pg_catalog.mod(t.tgtype::integer, 2) OPERATOR(pg_catalog.=) 1)
                OPERATOR(pg_catalog.=) (t.tgqual IS NOT NULL) AS is_as_made
    FROM pg_catalog.pg_trigger AS t
    WHERE t.tgfoid OPERATOR(pg_catalog.=) 'fence_internals.refuse()'::pg_catalog.regprocedure::pg_catalog.oid
),
member (relid) AS (
    SELECT tgrelid
    FROM ours
    UNION
    SELECT i.inhrelid
    FROM member AS m
    JOIN pg_catalog.pg_inherits AS i ON i.inhparent OPERATOR(pg_catalog.=) m.relid
),
-- The triggers for what logical replication applies: on a row, before an update, in the apply worker alone.
keeping (tgrelid, tgname, problem, fence_attnum) AS (
    SELECT
        t.tgrelid,
        t.tgname,
        CASE
            WHEN t.tgenabled OPERATOR(pg_catalog.=) 'D'::pg_catalog."char" THEN ' is disabled'::pg_catalog.text
            WHEN t.tgenabled OPERATOR(pg_catalog.<>) 'R'::pg_catalog."char"
                OR t.tgtype OPERATOR(pg_catalog.<>) 19::smallint
                OR pg_catalog.cardinality(t.tgattr::smallint[]) OPERATOR(pg_catalog.<>) 0
                THEN ' is not as fence_protect() makes it'
        END,
        fence_internals.trigger_column(t.tgqual, t.tgtype)
    FROM pg_catalog.pg_trigger AS t
    WHERE t.tgfoid OPERATOR(pg_catalog.=) 'fence_internals.keep_newer()'::pg_catalog.regprocedure::pg_catalog.oid
),
-- The triggers that remember deletions.
remembering AS (
    SELECT
        t.tgrelid,
        t.tgtype,
        r.deletions,
        r.fence,
        r.key,
        CASE
            WHEN t.tgenabled OPERATOR(pg_catalog.=) 'D'::pg_catalog."char" THEN ' is disabled'::pg_catalog.text
            WHEN (t.tgenabled OPERATOR(pg_catalog.=) 'O'::pg_catalog."char"
                    AND pg_catalog.current_setting('session_replication_role') OPERATOR(pg_catalog.=) 'replica')
                OR (t.tgenabled OPERATOR(pg_catalog.=) 'R'::pg_catalog."char"
                    AND pg_catalog.current_setting('session_replication_role') OPERATOR(pg_catalog.<>) 'replica')
                THEN ' does not fire at this session_replication_role'
            WHEN r.deletions IS NULL OR pg_catalog.cardinality(t.tgattr::smallint[]) OPERATOR(pg_catalog.<>) 0
                THEN ' is not as fence_protect() makes it'
        END AS problem,
        t.tgname
    FROM pg_catalog.pg_trigger AS t
    CROSS JOIN LATERAL fence_internals.trigger_deletions(t.tgqual, t.tgtype) AS r
    WHERE t.tgfoid OPERATOR(pg_catalog.=) 'fence_internals.remember()'::pg_catalog.regprocedure::pg_catalog.oid
),
-- What pg_trigger.tgtype says of each trigger that is needed, and of which kinds of relations.
needed (place, what, tgtype, relkinds) AS (
    VALUES
        (1, 'UPDATE', 17::smallint, 'rpf'),
        (2, 'DELETE', 9::smallint, 'rpf'),
        (3, 'INSERT', 5::smallint, 'rf'),
        (4, 'TRUNCATE', 34::smallint, 'rpf')
),
-- The columns that most row triggers name: one that names another was altered.
fence_column (relid, attnum, owner_attnum) AS (
    SELECT
        m.relid,
        pg_catalog.mode() WITHIN GROUP (ORDER BY o.fence_attnum),
        pg_catalog.mode() WITHIN GROUP (ORDER BY o.owner_attnum)
    FROM member AS m
    LEFT JOIN ours AS o ON o.tgrelid OPERATOR(pg_catalog.=) m.relid AND o.is_as_made
    GROUP BY m.relid
)
SELECT
    c.oid::pg_catalog.regclass AS target,
    a.attname AS fence_column,
    w.attname AS owner_column,
    ARRAY(
        SELECT n.what OPERATOR(pg_catalog.||) ': '::pg_catalog.text OPERATOR(pg_catalog.||) COALESCE(
            (
                SELECT pg_catalog.string_agg(
                    'trigger '::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.quote_ident(o.tgname::pg_catalog.text)
                    OPERATOR(pg_catalog.||) CASE
                        WHEN o.is_disabled THEN ' is disabled'::pg_catalog.text
                        WHEN NOT o.fires THEN ' does not fire at this session_replication_role'
                        ELSE ' is not as fence_protect() makes it'
                    END,
                    ', ' ORDER BY o.tgname
                )
                FROM ours AS o
                WHERE o.tgrelid OPERATOR(pg_catalog.=) c.oid
                    AND o.tgtype OPERATOR(pg_catalog.=) n.tgtype
            ),
            'no trigger'
        )
        FROM needed AS n
        WHERE pg_catalog.strpos(n.relkinds, c.relkind::pg_catalog.text) OPERATOR(pg_catalog.>) 0
            AND NOT EXISTS (
                SELECT
                FROM ours AS o
                WHERE o.tgrelid OPERATOR(pg_catalog.=) c.oid
                    AND o.tgtype OPERATOR(pg_catalog.=) n.tgtype
                    AND o.fires
                    AND o.is_as_made
                    AND CASE
                        WHEN pg_catalog.mod(n.tgtype::integer, 2) OPERATOR(pg_catalog.=) 1
                            THEN o.fence_attnum OPERATOR(pg_catalog.=) a.attnum
                                AND COALESCE(o.owner_attnum, 0::smallint) OPERATOR(pg_catalog.=) COALESCE(f.owner_attnum, 0::smallint)
                        ELSE o.fence_attnum IS NULL
                    END
            )
        ORDER BY n.place
    ) OPERATOR(pg_catalog.||) ARRAY(
        SELECT pg_catalog.concat(
            'replicated UPDATE: trigger ',
            pg_catalog.quote_ident(k.tgname::pg_catalog.text),
            COALESCE(k.problem, ' is not as fence_protect() makes it')
        )
        FROM keeping AS k
        WHERE k.tgrelid OPERATOR(pg_catalog.=) c.oid
            AND (k.problem IS NOT NULL OR NOT COALESCE(k.fence_attnum OPERATOR(pg_catalog.=) a.attnum, false))
        ORDER BY k.tgname
    ) OPERATOR(pg_catalog.||) ARRAY(
        SELECT pg_catalog.concat(
            'remembered ',
            n.what,
            ': ',
            COALESCE(
                (
                    SELECT pg_catalog.string_agg(
                        pg_catalog.concat(
                            'trigger ',
                            pg_catalog.quote_ident(r.tgname::pg_catalog.text),
                            COALESCE(r.problem, ' is not as fence_protect() makes it')
                        ),
                        ', ' ORDER BY r.tgname
                    )
                    FROM remembering AS r
                    WHERE r.tgrelid OPERATOR(pg_catalog.=) c.oid
                        AND r.tgtype OPERATOR(pg_catalog.=) n.tgtype
                ),
                'no trigger'
            )
        )
        FROM needed AS n
        WHERE n.what OPERATOR(pg_catalog.<>) 'TRUNCATE'
            AND pg_catalog.strpos(n.relkinds, c.relkind::pg_catalog.text) OPERATOR(pg_catalog.>) 0
            AND d.is_remembered
            AND NOT EXISTS (
                SELECT
                FROM remembering AS r
                WHERE r.tgrelid OPERATOR(pg_catalog.=) c.oid
                    AND r.tgtype OPERATOR(pg_catalog.=) n.tgtype
                    AND r.problem IS NULL
                    AND r.fence OPERATOR(pg_catalog.=) a.attnum
                    AND r.deletions::pg_catalog.oid OPERATOR(pg_catalog.=) d.deletions
            )
        ORDER BY n.place
    ) OPERATOR(pg_catalog.||) ARRAY(
        SELECT pg_catalog.concat('remembered: trigger ', pg_catalog.quote_ident(r.tgname::pg_catalog.text), ' names another table')
        FROM remembering AS r
        WHERE r.tgrelid OPERATOR(pg_catalog.=) c.oid
            AND r.deletions::pg_catalog.oid OPERATOR(pg_catalog.<>) d.deletions
        ORDER BY r.tgname
    ) OPERATOR(pg_catalog.||) ARRAY(
        SELECT pg_catalog.concat('remembered: table ', d.deletions::pg_catalog.regclass, ' holds no deletions of the table')
        WHERE d.deletions IS NOT NULL
            AND NOT EXISTS (
                SELECT
                FROM pg_catalog.pg_constraint AS k
                JOIN pg_catalog.pg_depend AS e
                    ON e.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_constraint'::pg_catalog.regclass::pg_catalog.oid
                    AND e.objid OPERATOR(pg_catalog.=) k.oid
                WHERE k.conrelid OPERATOR(pg_catalog.=) d.deletions
                    AND k.conname OPERATOR(pg_catalog.=) 'fence_protect_deletions'
                    AND k.contype OPERATOR(pg_catalog.=) 'c'::pg_catalog."char"
                    AND e.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
                    AND (
                        e.refobjid OPERATOR(pg_catalog.=) c.oid
                        OR e.refobjid OPERATOR(pg_catalog.=) ANY (
                            ARRAY(SELECT p.relid::pg_catalog.oid FROM pg_catalog.pg_partition_ancestors(c.oid) AS p (relid))
                        )
                    )
            )
    ) OPERATOR(pg_catalog.||) ARRAY(
        SELECT pg_catalog.concat('remembered: table ', d.deletions::pg_catalog.regclass, ' does not belong to the owner of the table')
        FROM pg_catalog.pg_class AS o
        WHERE o.oid OPERATOR(pg_catalog.=) d.deletions
            AND o.relowner OPERATOR(pg_catalog.<>) (
                SELECT t.relowner
                FROM pg_catalog.pg_class AS t
                WHERE t.oid OPERATOR(pg_catalog.=) COALESCE(pg_catalog.pg_partition_root(c.oid)::pg_catalog.oid, c.oid)
            )
    ) OPERATOR(pg_catalog.||) ARRAY(
        SELECT 'remembered: the primary key has other columns'::pg_catalog.text
        WHERE d.is_remembered
            AND NOT EXISTS (
                SELECT
                FROM pg_catalog.pg_index AS i
                JOIN remembering AS r ON r.tgrelid OPERATOR(pg_catalog.=) i.indrelid
                WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid
                    AND i.indisprimary
                    AND r.key OPERATOR(pg_catalog.=) pg_catalog.array_to_string((i.indkey::smallint[])[0:i.indnkeyatts - 1], ' ')
            )
    ) OPERATOR(pg_catalog.||) ARRAY(
        SELECT pg_catalog.concat('remembered: table ', d.deletions::pg_catalog.regclass, ' is emptied by a crash, which the table is not')
        FROM pg_catalog.pg_class AS o
        WHERE o.oid OPERATOR(pg_catalog.=) d.deletions
            AND c.relpersistence OPERATOR(pg_catalog.=) 'p'::pg_catalog."char"
            AND o.relpersistence OPERATOR(pg_catalog.<>) 'p'::pg_catalog."char"
    ) OPERATOR(pg_catalog.||) ARRAY(
        -- The one that calls keep by its name. A domain has the output function of the type that it is over.
        SELECT pg_catalog.concat('no trigger asks for the owner in column ', pg_catalog.quote_ident(u.attname::pg_catalog.text))
        FROM pg_catalog.pg_attribute AS u
        JOIN pg_catalog.pg_type AS t ON t.oid OPERATOR(pg_catalog.=) u.atttypid
        WHERE u.attrelid OPERATOR(pg_catalog.=) c.oid
            AND u.attname::pg_catalog.text
                OPERATOR(pg_catalog.=) (a.attname::pg_catalog.text OPERATOR(pg_catalog.||) '_owner'::pg_catalog.text)
            AND f.owner_attnum IS NULL
            AND t.typoutput::pg_catalog.oid OPERATOR(pg_catalog.=) ANY (
                ARRAY[
                    'pg_catalog.textout(text)'::pg_catalog.regprocedure::pg_catalog.oid,
                    'pg_catalog.varcharout(varchar)'::pg_catalog.regprocedure::pg_catalog.oid
                ]
            )
            AND u.attgenerated OPERATOR(pg_catalog.=) ''::pg_catalog."char"
            AND NOT EXISTS (
                SELECT
                FROM pg_catalog.pg_index AS i
                WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid
                    AND i.indisprimary
                    AND u.attnum OPERATOR(pg_catalog.=) ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
            )
    ) OPERATOR(pg_catalog.||) CASE
        WHEN NOT a.attnotnull THEN ARRAY['the fence column can be null'::pg_catalog.text]
        ELSE ARRAY[]::pg_catalog.text[]
    END AS open_by,
    ARRAY(
        SELECT DISTINCT CASE
            WHEN g.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'::pg_catalog.text
            ELSE pg_catalog.pg_get_userbyid(g.grantee)::pg_catalog.text
        END
        FROM pg_catalog.aclexplode(c.relacl) AS g
        WHERE g.privilege_type OPERATOR(pg_catalog.=) 'TRIGGER'::pg_catalog.text
            AND g.grantee OPERATOR(pg_catalog.<>) c.relowner
        ORDER BY 1
    ) AS may_open,
    CASE
        WHEN EXISTS (SELECT FROM keeping AS k WHERE k.tgrelid OPERATOR(pg_catalog.=) c.oid) THEN 'newest'::pg_catalog.text
        ELSE 'plain'
    END AS replicated,
    CASE
        WHEN EXISTS (
            SELECT
            FROM ours AS o
            WHERE o.inserts OPERATOR(pg_catalog.=) 'fenced'
                AND (
                    o.tgrelid OPERATOR(pg_catalog.=) c.oid
                    OR o.tgrelid OPERATOR(pg_catalog.=) ANY (
                        ARRAY(SELECT p.relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree(c.oid) AS p)
                    )
                )
        ) THEN 'fenced'::pg_catalog.text
        ELSE 'plain'
    END AS inserts,
    CASE WHEN d.is_remembered THEN 'remembered'::pg_catalog.text ELSE 'plain' END AS deletes,
    d.deletions::pg_catalog.regclass AS deletions
FROM member AS m
JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) m.relid
JOIN fence_column AS f ON f.relid OPERATOR(pg_catalog.=) m.relid
LEFT JOIN pg_catalog.pg_attribute AS a
    ON a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.=) f.attnum
LEFT JOIN pg_catalog.pg_attribute AS w
    ON w.attrelid OPERATOR(pg_catalog.=) c.oid AND w.attnum OPERATOR(pg_catalog.=) f.owner_attnum
-- The table that most of them name, as with the column.
CROSS JOIN LATERAL (
    SELECT
        pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 AS is_remembered,
        pg_catalog.mode() WITHIN GROUP (ORDER BY r.deletions::pg_catalog.oid) AS deletions
    FROM remembering AS r
    WHERE r.tgrelid OPERATOR(pg_catalog.=) c.oid
) AS d;

COMMENT ON VIEW fence_protected IS
'Every protected table and every partition and child of one, with all that leaves it open.';
COMMENT ON COLUMN fence_protected.target IS
'The table.';
COMMENT ON COLUMN fence_protected.fence_column IS
'The column that holds the fence; NULL when no trigger names one.';
COMMENT ON COLUMN fence_protected.owner_column IS
'The column that keeps the owner of the fence; NULL when no trigger names one.';
COMMENT ON COLUMN fence_protected.open_by IS
'What admits a write without a fence; empty when the table is closed.';

COMMENT ON COLUMN fence_protected.may_open IS
'Who else can open it: roles other than the owner that hold TRIGGER on the table, which GRANT ALL contains.';

COMMENT ON COLUMN fence_protected.replicated IS
'What becomes of an update that logical replication applies: newest, the row with the newer fence stays; plain, it is applied.';

COMMENT ON COLUMN fence_protected.inserts IS
'Which new rows pass: fenced, those that carry a fence in use; plain, those without a fence too.';

COMMENT ON COLUMN fence_protected.deletes IS
'What becomes of a deletion: remembered, no older fence inserts its key again; plain, nothing.';

COMMENT ON COLUMN fence_protected.deletions IS
'The table in which deletions are remembered; NULL when they are not.';

CREATE FUNCTION fence_internals.stat(
    OUT kind text,
    OUT id bigint,
    OUT resource text,
    OUT claims bigint,
    OUT claims_stale bigint,
    OUT writes bigint,
    OUT writes_stale bigint,
    OUT unclaimed bigint,
    OUT outlived bigint,
    OUT duplicate_fence bigint,
    OUT unfenced_refused bigint,
    OUT grants bigint,
    OUT busy bigint,
    OUT waits bigint,
    OUT wait_time double precision,
    OUT late_releases bigint,
    OUT evictions bigint,
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

COMMENT ON FUNCTION fence_internals.stat() IS
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

CREATE VIEW pg_stat_fence AS
SELECT
    s.kind,
    CASE WHEN s.kind OPERATOR(pg_catalog.=) 'table' THEN c.oid::pg_catalog.regclass END AS target,
    s.resource,
    s.claims,
    s.claims_stale,
    s.writes,
    s.writes_stale,
    s.unclaimed,
    s.outlived,
    s.duplicate_fence,
    s.unfenced_refused,
    s.grants,
    s.busy,
    s.waits,
    s.wait_time,
    s.late_releases,
    s.evictions,
    s.last_stale_at,
    s.last_stale_fence,
    s.stored_fence_then
FROM fence_internals.stat() AS s
LEFT JOIN pg_catalog.pg_class AS c
    ON s.kind OPERATOR(pg_catalog.=) 'table' AND c.oid::bigint OPERATOR(pg_catalog.=) s.id
-- A table that was dropped is not shown.
WHERE s.kind IS NULL OR s.kind OPERATOR(pg_catalog.<>) 'table' OR c.oid IS NOT NULL;

COMMENT ON VIEW pg_stat_fence IS
'Calls on each table, guard and lock since the server started or the counts were reset, rolled back or not.';
COMMENT ON COLUMN pg_stat_fence.kind IS
'table, guard or lock; other tables, other guards and other locks add up those that found no place.';
COMMENT ON COLUMN pg_stat_fence.target IS
'The table.';
COMMENT ON COLUMN pg_stat_fence.resource IS
'The name of the guard or the lock, at most 128 bytes of it.';
COMMENT ON COLUMN pg_stat_fence.claims IS
'Claims that stamped or found their fence, or inserted the row; transactions that the guard admitted.';
COMMENT ON COLUMN pg_stat_fence.claims_stale IS
'Claims and guards that a newer fence refused.';
COMMENT ON COLUMN pg_stat_fence.writes IS
'Updates, fenced writes, upserts and deletes.';
COMMENT ON COLUMN pg_stat_fence.writes_stale IS
'The same, refused because of a newer fence.';
COMMENT ON COLUMN pg_stat_fence.unclaimed IS
'Writes that were refused because their fence had not claimed the row.';
COMMENT ON COLUMN pg_stat_fence.outlived IS
'Writes and guards that were refused because they relied on what was read before the server was started or promoted.';
COMMENT ON COLUMN pg_stat_fence.duplicate_fence IS
'Claims, writes and guards that were refused because the stored fence, with the same number, is another owner''s.';
COMMENT ON COLUMN pg_stat_fence.unfenced_refused IS
'Writes on a protected table that were refused because they had no fence.';
COMMENT ON COLUMN pg_stat_fence.grants IS
'How often a lock was granted.';
COMMENT ON COLUMN pg_stat_fence.busy IS
'Calls of fencelock_acquire() and fencelock_wait() that were answered with NULL or refused for too many waiters.';
COMMENT ON COLUMN pg_stat_fence.waits IS
'Calls that had to wait for other transactions, whatever came of it.';
COMMENT ON COLUMN pg_stat_fence.wait_time IS
'How long they waited, in milliseconds.';
COMMENT ON COLUMN pg_stat_fence.late_releases IS
'Releases by a holder whose lease had ended.';
COMMENT ON COLUMN pg_stat_fence.evictions IS
'Sessions that fence_guard_evict() terminated because they held the guard.';
COMMENT ON COLUMN pg_stat_fence.last_stale_at IS
'When the newest stale call was.';
COMMENT ON COLUMN pg_stat_fence.last_stale_fence IS
'The fence of that call.';
COMMENT ON COLUMN pg_stat_fence.stored_fence_then IS
'The newer fence that was stored at that moment.';

-- Default privileges (ALTER DEFAULT PRIVILEGES ... GRANT ... TO app) have granted rights on all of this: they go, whoever
-- has them, so that the grants below are all there are.
DO $$
DECLARE
    revoke pg_catalog.text;
BEGIN
    FOR revoke IN
        WITH made (kind, name, owner, acl, classid, objid) AS (
            SELECT
                'SCHEMA',
                pg_catalog.quote_ident(n.nspname::pg_catalog.text),
                n.nspowner,
                COALESCE(n.nspacl, pg_catalog.acldefault('n', n.nspowner)),
                'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid,
                n.oid
            FROM pg_catalog.pg_namespace AS n
            UNION ALL
            SELECT
                'TABLE',
                c.oid::pg_catalog.regclass::pg_catalog.text,
                c.relowner,
                COALESCE(c.relacl, pg_catalog.acldefault('r', c.relowner)),
                'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid,
                c.oid
            FROM pg_catalog.pg_class AS c
            WHERE c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'v', 'S']::pg_catalog."char"[])
            UNION ALL
            SELECT
                'ROUTINE',
                p.oid::pg_catalog.regprocedure::pg_catalog.text,
                p.proowner,
                COALESCE(p.proacl, pg_catalog.acldefault('f', p.proowner)),
                'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid,
                p.oid
            FROM pg_catalog.pg_proc AS p
        )
        SELECT DISTINCT
            pg_catalog.concat(
                'REVOKE ALL ON ', m.kind, ' ', m.name, ' FROM ',
                CASE
                    WHEN a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
                    ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)::pg_catalog.text)
                END,
                ' CASCADE'
            )
        FROM made AS m
        JOIN pg_catalog.pg_depend AS d
            ON d.classid OPERATOR(pg_catalog.=) m.classid AND d.objid OPERATOR(pg_catalog.=) m.objid
        JOIN pg_catalog.pg_extension AS e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        CROSS JOIN LATERAL pg_catalog.aclexplode(m.acl) AS a
        WHERE d.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
            AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
            AND e.extname OPERATOR(pg_catalog.=) 'pg_fence'::pg_catalog.name
            AND a.grantee OPERATOR(pg_catalog.<>) m.owner
    LOOP
        EXECUTE revoke;
    END LOOP;
END
$$;

GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, "any", bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, "any", bigint, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, "any", bigint, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, text, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, text, bigint, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim(anyelement, text, bigint, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_or_insert(anyelement, "any", bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_or_insert(anyelement, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_or_insert(anyelement, "any", bigint, jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_or_insert(anyelement, "any", bigint, jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_or_insert(anyelement, text, bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_or_insert(anyelement, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_or_insert(anyelement, text, bigint, jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_or_insert(anyelement, text, bigint, jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, "any", bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, "any", bigint, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, "any", bigint, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, text, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, text, bigint, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_json(regclass, text, bigint, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, "any", bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, text, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, "any", bigint, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, "any", bigint, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, text, bigint, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_claim_many(anyelement, text, bigint, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, "any", bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, "any", bigint, jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, "any", bigint, jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, text, bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, text, bigint, jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update(regclass, text, bigint, jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, "any", bigint, jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_returning(anyelement, text, bigint, jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, "any", bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, "any", bigint, jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, "any", bigint, jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, text, bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, text, bigint, jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write(regclass, text, bigint, jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_upsert(regclass, "any", bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_upsert(regclass, "any", bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_upsert(regclass, "any", bigint, jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_upsert(regclass, "any", bigint, jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_upsert(regclass, text, bigint, jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_upsert(regclass, text, bigint, jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_upsert(regclass, text, bigint, jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_upsert(regclass, text, bigint, jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, "any", bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, "any", bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, "any", bigint, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, "any", bigint, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, text, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, text, bigint, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, text, bigint, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete(regclass, text, bigint, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_many(regclass, "any", bigint[], jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_many(regclass, "any", bigint[], jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_many(regclass, "any", bigint[], jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_many(regclass, "any", bigint[], jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_many(regclass, text, bigint[], jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_many(regclass, text, bigint[], jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_many(regclass, text, bigint[], jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_update_many(regclass, text, bigint[], jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write_many(regclass, "any", bigint[], jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write_many(regclass, "any", bigint[], jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write_many(regclass, "any", bigint[], jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write_many(regclass, "any", bigint[], jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write_many(regclass, text, bigint[], jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write_many(regclass, text, bigint[], jsonb, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write_many(regclass, text, bigint[], jsonb, name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_write_many(regclass, text, bigint[], jsonb, name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete_many(regclass, "any", bigint[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete_many(regclass, "any", bigint[], name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete_many(regclass, "any", bigint[], name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete_many(regclass, "any", bigint[], name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete_many(regclass, text, bigint[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete_many(regclass, text, bigint[], name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete_many(regclass, text, bigint[], name, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fenced_delete_many(regclass, text, bigint[], name, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_reset(regclass, "any", bigint, name, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_reset(regclass, text, bigint, name, name) TO PUBLIC;

GRANT EXECUTE ON FUNCTION fence_life() TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_protect(regclass, name, text, text, text, name) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_unprotect(regclass) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_use(bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_use(bigint, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_forget_deletions(regclass, interval) TO PUBLIC;
GRANT SELECT ON fence_protected TO PUBLIC;

-- Shows to each caller what pg_stat_activity shows to it.
GRANT EXECUTE ON FUNCTION fence_internals.guard_holders() TO PUBLIC;
GRANT SELECT ON fence_guard_blockers TO PUBLIC;

GRANT USAGE ON SCHEMA fence_internals TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.refuses_update(oid, tid, xid, bigint, bigint, text, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.refuses_delete(oid, tid, xid, bigint, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.refuses_insert(oid, tid, bigint, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.given() TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.refuses_unfenced_insert(oid, tid, bigint, text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.has_key(regclass, bigint, VARIADIC "any") TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.changes_key(regclass, bigint, bigint, VARIADIC "any") TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.in_life(xid) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.refuse() TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.keep_newer() TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.remember() TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.trigger_column(pg_node_tree, smallint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.trigger_owner(pg_node_tree, smallint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.trigger_inserts(pg_node_tree, smallint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION fence_internals.trigger_deletions(pg_node_tree, smallint) TO PUBLIC;

-- Nobody else is granted fence_new_life(): it is of all databases of the server, where every holder has to claim again.

-- The names of guards and the fences are for those who watch the server.
GRANT EXECUTE ON FUNCTION fence_internals.stat() TO pg_monitor;
GRANT EXECUTE ON FUNCTION fence_internals.stat() TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_internals.stat() TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION pg_stat_fence_reset() TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION pg_stat_fence_reset() TO pg_database_owner WITH GRANT OPTION;
GRANT SELECT ON TABLE pg_stat_fence TO pg_monitor;
GRANT SELECT ON TABLE pg_stat_fence TO @extowner@ WITH GRANT OPTION;
GRANT SELECT ON TABLE pg_stat_fence TO pg_database_owner WITH GRANT OPTION;

-- To the owner of the extension and to that of the database: a superuser who restores a dump of the database owner's
-- creates the extension, and the database owner dumps one that a superuser has created.
-- INSERT is what pg_restore needs. Whoever has it could only add guards, which fence_guard_reset() lets them do anyway.
GRANT SELECT, INSERT ON TABLE fence_internals.guards TO @extowner@;
GRANT SELECT, INSERT ON TABLE fence_internals.guards TO pg_database_owner;

GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint, text) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint, text) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint, text, text) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint, text, text) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_forget(bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_forget(bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_evict(text, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_evict(text, bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_reset(text, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_guard_reset(text, bigint) TO pg_database_owner WITH GRANT OPTION;

-- As those of the guards. Unlike an advisory lock a lease costs room, outlives its session and keeps others out for
-- pg_fence.max_ttl.
GRANT SELECT, INSERT ON TABLE fence_internals.leases TO @extowner@;
GRANT SELECT, INSERT ON TABLE fence_internals.leases TO pg_database_owner;
GRANT SELECT, UPDATE ON SEQUENCE fence_internals.lease_fences TO @extowner@;
GRANT SELECT, UPDATE ON SEQUENCE fence_internals.lease_fences TO pg_database_owner;

GRANT EXECUTE ON FUNCTION fencelock_acquire(text, text, bigint, bigint, boolean, bigint, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_acquire(text, text, bigint, bigint, boolean, bigint, bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON PROCEDURE fencelock_wait(text, text, bigint, bigint, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON PROCEDURE fencelock_wait(text, text, bigint, bigint, bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_extend(text, text, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_extend(text, text, bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_extend(text, text, bigint, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_extend(text, text, bigint, bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_release(text, text) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_release(text, text) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_release(text, text, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_release(text, text, bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_check(text, bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_check(text, bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_inspect(text) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_inspect(text) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_raise(bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_raise(bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_free(text) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_free(text) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_forget(bigint) TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fencelock_forget(bigint) TO pg_database_owner WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_internals.leases() TO @extowner@ WITH GRANT OPTION;
GRANT EXECUTE ON FUNCTION fence_internals.leases() TO pg_database_owner WITH GRANT OPTION;
GRANT SELECT ON TABLE fencelocks TO @extowner@ WITH GRANT OPTION;
GRANT SELECT ON TABLE fencelocks TO pg_database_owner WITH GRANT OPTION;

GRANT EXECUTE ON FUNCTION fencelock_inspect(text) TO pg_monitor;
GRANT EXECUTE ON FUNCTION fence_internals.leases() TO pg_monitor;
GRANT SELECT ON TABLE fencelocks TO pg_monitor;
