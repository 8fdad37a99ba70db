-- The counters of redis_fencelock for redis_exporter: `redis_exporter -script fencelock.lua`.
-- Each becomes redis_script_values{key="late-releases"} and so on. The busiest locks and those whose holders come late
-- follow by name: key="contended 0 lock:report" is that counter of `lock:report` in database 0. Each of them is a series
-- of its own: where names come and go by the thousand (one for each order), set `locks` to 0. The user of the exporter
-- needs +eval, +fencelock.stats and +fencelock.top.
local locks = 10

-- Whole: tostring() would round a fence.
local function whole(number)
    return string.format('%.0f', number)
end

local told = redis.call('FENCELOCK.STATS')
for at = 2, #told, 2 do
    told[at] = whole(told[at])
end

local known = {}
for _, counter in ipairs({'contended', 'late-releases', 'late-extensions'}) do
    for _, lock in ipairs(locks > 0 and redis.call('FENCELOCK.TOP', locks, 'BY', counter) or {}) do
        -- A label is plain text, and a name may be any bytes.
        local name = lock[2]:gsub('[^%w%p ]', function(byte) return string.format('\\x%02x', byte:byte()) end)
        name = whole(lock[4]) .. ' ' .. name
        for at = 5, known[name] and 0 or #lock, 2 do
            told[#told + 1] = lock[at] .. ' ' .. name
            told[#told + 1] = whole(lock[at + 1])
        end
        known[name] = true
    end
end
return told
