-- A poisoned fence: a wrong number far above all that the lock service issues is stored, and every holder is stale.
--
-- The settings keep most of them out: pg_fence.max_fence_ahead (2 days ahead of the clock), and pg_fence.max_fence where
-- fences are small counters. This is what to do about one that came in all the same, by plain SQL or before they were set.
--
-- A line `-- =>` is what psql (-qAt) prints for the statement before it.

CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0);
INSERT INTO counters VALUES (1, 0, 9007199254740991), (2, 0, 41);
BEGIN;
SELECT fenced_guard('ledger', 41);
-- => 41
COMMIT;

-- How it shows: a holder that has just been granted the lock is stale. Its rows are those ahead of the clock. (Where
-- fences are small counters: those above the last one that was issued.)
SELECT count(*) FROM fenced_claim(NULL::counters, 1, 42);
-- => 0
SELECT id, fence FROM counters WHERE fence > extract(epoch FROM clock_timestamp() + interval '1 hour') * 1000000;
-- => 1|9007199254740991

-- Set it back to the newest fence that was really issued: FENCELOCK.STATS reports it as last-issued, and a holder of today
-- has a larger one. 0 would admit those that are stale as well. For the owner of the table; both numbers are logged.
SELECT fence_reset('counters', id, 41)
FROM counters
WHERE fence > extract(epoch FROM clock_timestamp() + interval '1 hour') * 1000000;
-- => 9007199254740991
SELECT id FROM fenced_claim(NULL::counters, 1, 42);
-- => 1

-- The same for a guard. For the owner of the extension.
BEGIN;
SELECT fenced_guard('ledger', 900000000);
-- => 900000000
COMMIT;
BEGIN;
SELECT fenced_guard('ledger', 42);
-- => ERROR:  fence 42 is stale at guard "ledger"
-- => DETAIL:  The guard has admitted fence 900000000; this transaction has fence 42.
-- => HINT:  Another holder has taken over. Roll back, and take the lock again. All transactions that call this guard must take the same lock.
ROLLBACK;
SELECT fence_guard_reset('ledger', 41);
-- => 900000000
BEGIN;
SELECT fenced_guard('ledger', 42);
-- => 42
COMMIT;

-- Where fences are counters of a few thousand, a low limit keeps the next one out.
SET pg_fence.max_fence = 100000;
SELECT count(*) FROM fenced_claim(NULL::counters, 1, 900000000);
-- => ERROR:  fence 900000000 is out of range
-- => DETAIL:  pg_fence.max_fence is 100000.
-- => HINT:  Pass the fence that the lock was granted with. A superuser can raise pg_fence.max_fence.
