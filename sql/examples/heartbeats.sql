-- Heartbeats and results of a worker that has many tasks: one call for all, with an answer for each.
--
-- The worker keeps for each task the fence that its lock was granted with. Every few seconds it beats for all of them in one
-- call, and drops those that are no longer its own; what it has finished meanwhile it writes in one call, too. A task that
-- another worker has taken over is left alone, whatever comes of the others.
--
-- What to do with a task, by its verdict:
--   written    go on.
--   stale      another worker has it: stop, and throw away what was done for it.
--   missing    it was deleted: stop.
--   unclaimed  this worker has not claimed it: a bug, or fence_reset() was called. Claim it, read it again, then go on.
--   outlived   PostgreSQL was started or promoted since: claim it and read it again; go on if it is as it was left.
--   blocked    a row-security policy or a trigger keeps the worker from it: an operator has to look.
--   duplicate_fence  the row has this fence of another owner: pass the owner; if it was passed, the lock server has issued the
--              fence twice. Stop.
-- An error means that nothing was written: roll back, and send the same call again, or each task alone to find the one that
-- violates a constraint.
--
-- A line `-- =>` is what psql (-qAt) prints for the statement before it.

CREATE TABLE tasks (
    id bigint PRIMARY KEY,
    state text NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'running', 'done')),
    beat_at timestamptz,
    result jsonb,
    fence bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO tasks (id) SELECT generate_series(1, 6);

-- Worker A has taken the locks of tasks 1 to 4, and claims them. Each lock has its own fence; here one lock covers all.
SELECT id, state FROM fenced_claim_many(NULL::tasks, ARRAY[1, 2, 3, 4], 41);
-- => 1|ready
-- => 2|ready
-- => 3|ready
-- => 4|ready
SELECT verdict FROM fenced_update_many('tasks', ARRAY[1, 2, 3, 4], '{41}', '{"state": "running"}');
-- => written
-- => written
-- => written
-- => written

-- A stalls. Worker B takes the lock of task 3 over.
SELECT id FROM fenced_claim(NULL::tasks, 3, 42);
-- => 3

-- A wakes up, and beats for all its tasks: one fence and one patch serve all. It learns of task 3, in the order of its keys.
SELECT * FROM fenced_update_many('tasks', ARRAY[4, 3, 2, 1], '{41}', jsonb_build_object('beat_at', clock_timestamp()));
-- => 1|written|41
-- => 2|stale|42
-- => 3|written|41
-- => 4|written|41

-- It has finished two tasks, and task 3 before it stalled. Each has its own result; A does not write into B's task.
SELECT ordinal, verdict
FROM fenced_update_many('tasks', ARRAY[1, 2, 3], ARRAY[41, 41, 41], '[
    {"state": "done", "result": {"sent": 1}},
    {"state": "done", "result": {"sent": 2}},
    {"state": "done", "result": {"sent": 3}}
]');
-- => 1|written
-- => 2|written
-- => 3|stale
SELECT id, state, result FROM tasks WHERE id <= 4 ORDER BY id;
-- => 1|done|{"sent": 1}
-- => 2|done|{"sent": 2}
-- => 3|running|
-- => 4|running|

-- What is done is removed, by whoever still holds it.
SELECT ordinal, verdict FROM fenced_delete_many('tasks', ARRAY[1, 2, 3], '{41}');
-- => 1|written
-- => 2|written
-- => 3|stale

-- Tasks that lost their worker: who may take them over, is said by their locks, not by the beat.
SELECT id FROM tasks WHERE state = 'running' AND beat_at < clock_timestamp() - interval '1 minute';
-- =>
