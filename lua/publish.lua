-- Makes staging the filter, if it is the builder's and whole. Repeated or late it
-- finds its filter live, or another's, and does nothing.
--
-- KEYS: filter, companion
-- ARGV: live magic, staging magic, marker magic, token, offset of the token,
--       offset of the count, count of chunks, 8 bytes, size of the string,
--       trailer, TTL in milliseconds (0: none), offset of the generation, '1' where
--       it shall replace no filter
-- Answers {'done', generation}, {'lost'}, {'back', count} (chunks are missing),
-- {'present'} (a filter that it shall not replace) or {'foreign'} (the key holds no
-- filter).
local function int64(s)
  local n = 0
  for i = 1, #s do
    n = n * 256 + string.byte(s, i)
  end
  return n
end

local function bytes(n)
  local b = {}
  for i = 8, 1, -1 do
    b[i] = string.char(n % 256)
    n = math.floor(n / 256)
  end
  return table.concat(b)
end

local live, staging, tokenAt = KEYS[1], KEYS[2], tonumber(ARGV[5])
local magic = redis.call('GETRANGE', live, 0, 7)
local generation = 0
if magic == ARGV[1] then
  generation = int64(redis.call('GETRANGE', live, ARGV[11], ARGV[11] + 7))
  if redis.call('GETRANGE', live, tokenAt, tokenAt + 23) == ARGV[4] then
    redis.call('SETRANGE', live, 0, magic) -- what the first copy wrote may have to be waited for
    return {'done', tostring(generation)}
  elseif ARGV[12] == '1' then
    return {'present'}
  end
elseif magic ~= '' and magic ~= ARGV[3] then
  return {'foreign'}
end
if redis.call('GETRANGE', staging, 0, 7) ~= ARGV[2]
  or redis.call('GETRANGE', staging, tokenAt, tokenAt + 23) ~= ARGV[4]
  or redis.call('STRLEN', staging) ~= tonumber(ARGV[8])
  or redis.call('GETRANGE', staging, -8, -1) ~= ARGV[9] then
  return {'lost'}
end
local count = redis.call('GETRANGE', staging, ARGV[6], ARGV[6] + 7)
if count ~= ARGV[7] then
  return {'back', tostring(int64(count))}
end
-- RENAME comes last, so that an ACL that refuses a command never leaves a published
-- filter with the lease for a TTL; one that refuses RENAME itself finds all undone.
local lease = redis.call('PTTL', staging)
local was = redis.call('GETRANGE', staging, ARGV[11], ARGV[11] + 15)
redis.call('SETRANGE', staging, ARGV[11], bytes(generation + 1) .. now())
if ARGV[10] == '0' then
  redis.call('PERSIST', staging)
else
  redis.call('PEXPIRE', staging, ARGV[10])
end
redis.call('SETRANGE', staging, 0, ARGV[1])
local renamed = redis.pcall('RENAME', staging, live)
if renamed.err then
  redis.call('SETRANGE', staging, 0, ARGV[2])
  redis.call('SETRANGE', staging, ARGV[11], was)
  redis.call('PEXPIRE', staging, lease)
  return renamed
end
return {'done', tostring(generation + 1)}
