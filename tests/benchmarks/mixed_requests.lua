-- For wrk: everything that can be asked of a key-value store, and what is refused, in turns. bench_server_memory.py
-- runs it. Arguments after "--": the path of the store, its number of keys. Prints how many answers had which status.

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  store, keys, asked = args[1], tonumber(args[2]), 0
  cursors, statuses = {}, {}
  math.randomseed(os.time())
end

local function key(number)
  return string.format("key-%08d", number or math.random(0, keys - 1))
end

local function get(path)
  return wrk.format("GET", path)
end

local function committed()
  return get(store .. "/keys/" .. key() .. "?isolation_level=read_committed")
end

local function uncommitted()
  return get(store .. "/keys/" .. key() .. "?isolation_level=read_uncommitted")
end

local function several()
  local body = string.format('{"type":"keys","keys":["%s","%s","%s"]}', key(), key(), key())
  return wrk.format("POST", store .. "/query", {["content-type"] = "application/json"}, body)
end

-- Three pages. One cursor in four is left, the others are followed to the end.
local function range()
  local first, level = math.random(0, keys - 20), math.random(2) == 1 and "read_committed" or "read_uncommitted"
  local bounds = "lower=" .. key(first) .. "&upper=" .. key(first + 12)
  return get(store .. "/range?" .. bounds .. "&limit=5&isolation_level=" .. level)
end

local function next_page()
  local cursor = table.remove(cursors)
  return cursor and get(store .. "/range?cursor=" .. cursor) or committed()
end

local function count()
  return get(store .. "/count?isolation_level=read_committed")
end

local function absent()
  return get(store .. "/keys/none-" .. math.random(0, 1e9) .. "?isolation_level=read_committed")
end

local function nothing()
  return get("/v1/stores/none-" .. math.random(0, 1e9) .. "/keys/1")
end

local function not_answered()
  return get(store .. "/keys/" .. key() .. "/versions")
end

local function not_understood()
  return get(store .. "/range?limit=" .. key())
end

-- Every second request is a committed read, and of the others these, in turns.
local kinds = {
  committed, committed, range, committed, uncommitted, next_page, committed, absent, committed, next_page,
  committed, several, committed, next_page, nothing, committed, count, uncommitted, not_answered, not_understood,
}

function request()
  asked = asked + 1
  if asked % 2 == 0 then
    return committed()
  end
  return kinds[(asked + 1) / 2 % #kinds + 1]()
end

function response(status, headers, body)
  statuses[status] = (statuses[status] or 0) + 1
  local cursor = body:match('"cursor": ?"([^"]+)"')
  if cursor and math.random(4) > 1 then
    table.insert(cursors, cursor)
  end
end

function done(summary, latency, requests)
  for _, thread in ipairs(threads) do
    for status, answers in pairs(thread:get("statuses")) do
      io.write(string.format("status %d: %d\n", status, answers))
    end
  end
end
