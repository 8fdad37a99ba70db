-- From a hand-made lock and counter to Fencelock: the rows already carry small fences, 57 here.
--
-- Its own rule was UPDATE ... SET lock_fence = $2 ... WHERE id = $3 AND lock_fence <= $2, which protects the write and not
-- the read before it. Fences of Fencelock are at least the time in microseconds, so they are larger than every counter's,
-- and the first claim just works: no fence needs to be changed. Four things do need care. from_counter_lock.py has the
-- workers' side.
--
-- A line `-- =>` is what psql (-qAt) prints for the statement before it.

CREATE TABLE invoices (id int PRIMARY KEY, status text NOT NULL, lock_fence int NOT NULL DEFAULT 0);
INSERT INTO invoices VALUES (1, 'open', 57);

-- 1. An integer column is too narrow.
SELECT status FROM fenced_claim(NULL::invoices, 1, 1795968243472377, fence_column => 'lock_fence');
-- => ERROR:  fence 1795968243472377 is out of range
-- => DETAIL:  Fence column "lock_fence" of table "invoices" has type integer, which ends at 2147483647.
-- => HINT:  Change the column's type to bigint.

--    Either widen it (the table is rewritten under an exclusive lock):
ALTER TABLE invoices ALTER lock_fence TYPE bigint;
--    or add a new column, which takes no time, when the old workers have stopped (nobody needs their numbers then):
ALTER TABLE invoices ADD fence bigint NOT NULL DEFAULT 0;
--    or stay with small numbers: load the module with `fence-clock no`, and raise its fences once, by
--    FENCELOCK.RAISE to the largest that any row has. It leaves 65,536 numbers out at every restart and fail-over,
--    so an integer column has room for 32,767 of these; a loss of more grants than that needs RAISE again:
SELECT max(lock_fence) FROM invoices;
-- => 57

-- 2. A column of another name is the last argument of every function.
SELECT status FROM fenced_claim(NULL::invoices, 1, 1795968243472377, fence_column => 'lock_fence');
-- => open
SELECT fenced_update('invoices', 1, 1795968243472377, '{"status": "closed"}', fence_column => 'lock_fence');
-- => t

-- 3. The old workers may go on while the new ones start. But the first claim of a new one puts its fence above their
--    counter, which is at 58 here: they write nothing more.
UPDATE invoices SET status = 'open', lock_fence = 58 WHERE id = 1 AND lock_fence <= 58 RETURNING status;
-- =>
--    So each new worker raises their counter in Redis to its own fence, after FENCELOCK.ACQUIRE and before its claim:
--
--        EVAL <script> 1 lock:invoice:fence 1795968243472377
--
--        if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then
--            redis.call('SET', KEYS[1], ARGV[1])
--        end
--
--    The next old worker has a larger fence then, and the next new one a larger one again.
UPDATE invoices SET status = 'open', lock_fence = 1795968243472378 WHERE id = 1 AND lock_fence <= 1795968243472378 RETURNING status;
-- => open

-- 4. When the old workers are gone, protect the table. Code that was forgotten shows itself.
SELECT fence_protect('invoices', 'lock_fence');
-- => 1
UPDATE invoices SET status = 'open' WHERE id = 1;
-- => ERROR:  UPDATE on protected table "invoices" requires a fence
-- => DETAIL:  The write came from neither a fenced_* function nor a transaction that declared the row's fence with fence_use().
-- => HINT:  Use a fenced_* function, or claim the row and call fence_use() with your lock's fence in this transaction.
SELECT status, lock_fence FROM invoices;
-- => open|1795968243472378
