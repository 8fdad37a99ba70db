-- From a hand-made lock and counter to Fencelock: the rows already carry small fences, 57 here.
--
-- Its own rule was UPDATE ... SET lock_fence = $2 ... WHERE id = $3 AND lock_fence <= $2, which protects the write and not
-- the read before it. Fences of Fencelock are at least the time in microseconds, so they are larger than every counter's,
-- and the first claim just works: no fence needs to be changed. Three things do need care.
--
-- A line `-- =>` is what psql (-qAt) prints for the statement before it.

CREATE TABLE invoices (id int PRIMARY KEY, status text NOT NULL, lock_fence int NOT NULL DEFAULT 0);
INSERT INTO invoices VALUES (1, 'open', 57);

-- 1. Stop the old workers before the first new one starts: after its first claim theirs are refused for ever. The two
--    kinds of lock do not see each other either.

-- 2. An integer column is too narrow.
SELECT status FROM fenced_claim(NULL::invoices, 1, 1795968243472377, fence_column => 'lock_fence');
-- => ERROR:  fence 1795968243472377 is out of range
-- => DETAIL:  Fence column "lock_fence" of table "invoices" has type integer, which ends at 2147483647.
-- => HINT:  Change the column's type to bigint.

--    Either widen it (the table is rewritten under an exclusive lock):
ALTER TABLE invoices ALTER lock_fence TYPE bigint;
--    or add a new column, which takes no time (and nobody needs the old numbers when the old workers are gone):
ALTER TABLE invoices ADD fence bigint NOT NULL DEFAULT 0;
--    or stay with small numbers: load the module with `fence-clock no`, and tell it once where to go on, which is
--    FENCELOCK.RAISE with the largest that any row has:
SELECT max(lock_fence) FROM invoices;
-- => 57

-- 3. A column of another name is the last argument of every function.
SELECT status FROM fenced_claim(NULL::invoices, 1, 1795968243472377, fence_column => 'lock_fence');
-- => open
SELECT fenced_update('invoices', 1, 1795968243472377, '{"status": "closed"}', fence_column => 'lock_fence');
-- => t

-- An old worker that was forgotten writes nothing.
UPDATE invoices SET status = 'open', lock_fence = 58 WHERE id = 1 AND lock_fence <= 58 RETURNING status;
-- =>

-- Code that was forgotten shows itself, once the table is protected.
SELECT fence_protect('invoices', 'lock_fence');
-- =>
UPDATE invoices SET status = 'open' WHERE id = 1;
-- => ERROR:  UPDATE on the protected table "invoices" proved no fence
-- => DETAIL:  It is neither the change of a fenced function nor of a transaction that uses the row's fence.
-- => HINT:  Use fenced_update() and its like, or claim the row and call fence_use() with your lock's fence in this transaction.
SELECT status FROM invoices;
-- => closed
