-- The counters of redis_fencelock for redis_exporter: `redis_exporter -script fencelock.lua`.
-- Each becomes redis_script_values{key="late-releases"} and so on. The user of the exporter needs +eval and
-- +fencelock.stats.
local stats = redis.call('FENCELOCK.STATS')
for at = 2, #stats, 2 do
    -- Whole: tostring() would round a fence.
    stats[at] = string.format('%.0f', stats[at])
end
return stats
