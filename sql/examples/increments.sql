-- value = value + 1 on the server, under a fence.
--
-- A line `-- =>` is what psql (-qAt) prints for the statement before it.

CREATE TABLE counters (
    id int PRIMARY KEY,
    value bigint NOT NULL DEFAULT 0,
    last_step uuid,
    fence bigint NOT NULL DEFAULT 0
);
INSERT INTO counters (id) VALUES (1), (2);

-- Claim once for each hold. Then any plain statement may add, as long as it asks for exactly this fence.
SELECT value FROM fenced_claim(NULL::counters, 1, 41);
-- => 0
UPDATE counters SET value = value + 1 WHERE id = 1 AND fence = 41 RETURNING value;
-- => 1
UPDATE counters SET value = value + 1 WHERE id = 1 AND fence = 41 RETURNING value;
-- => 2

-- Nothing written means one of three: a newer holder (stop), not claimed yet, no such row. A claim shows which: no row,
-- the row, an error.
SELECT value FROM fenced_claim(NULL::counters, 1, 42);
-- => 2
UPDATE counters SET value = value + 1 WHERE id = 1 AND fence = 41 RETURNING value;
-- =>
SELECT value FROM fenced_claim(NULL::counters, 1, 41);
-- =>

-- On a protected table the statement needs no condition, so nobody can forget it, and an ORM's own increment
-- (F("value") + 1) works as it is. What is refused is an error that says why.
SELECT fence_protect('counters');
-- => 1
BEGIN;
SELECT fence_use(42);
-- => 42
UPDATE counters SET value = value + 1 WHERE id = 1 RETURNING value;
-- => 3
COMMIT;
BEGIN;
SELECT fence_use(41);
-- => 41
UPDATE counters SET value = value + 1 WHERE id = 1 RETURNING value;
-- => ERROR:  fence 41 is stale at a row of table "counters"
-- => DETAIL:  The row has fence 42; the newest declared in this transaction is 41.
-- => HINT:  Another holder has taken over. Roll back, and take the lock again. All writers of a row must take the same lock.
ROLLBACK;

-- A fence tells holders apart, not the tries of one holder: when the reply to an increment is lost, a second try counts
-- twice. Give each step a name, and let the same statement ask for it.
BEGIN;
SELECT fence_use(42);
-- => 42
UPDATE counters SET value = value + 1, last_step = 'b94fe5b2-9a65-4c3f-8a1c-4a5ac0de0001'
WHERE id = 1 AND last_step IS DISTINCT FROM 'b94fe5b2-9a65-4c3f-8a1c-4a5ac0de0001' RETURNING value;
-- => 4
UPDATE counters SET value = value + 1, last_step = 'b94fe5b2-9a65-4c3f-8a1c-4a5ac0de0001'
WHERE id = 1 AND last_step IS DISTINCT FROM 'b94fe5b2-9a65-4c3f-8a1c-4a5ac0de0001' RETURNING value;
-- =>
COMMIT;
SELECT value, fence FROM counters WHERE id = 1;
-- => 4|42
