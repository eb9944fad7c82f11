-- Adds items to a filter and, while a rebuild runs, to the one that it fills. It
-- writes both or, where it lacks the right positions for one, nothing. It never
-- makes a key. Setting a bit twice, or late, is harmless: the fingerprint names
-- one geometry with one seed.
--
-- KEYS: filter, companion
-- ARGV: live magic, staging magic, marker magic, where in the header the bytes
--       begin that never change, then for the filter and for staging each: those
--       bytes ('' if unknown), fingerprint, size of the string, k, bit offsets of
--       all items in decimal (a number of Lua takes Redis longer than a string);
--       then 'staging' where the filter is damaged and only staging shall be
--       written, 'write' where something has to be written even if all items are in
-- Answers {'added', one '0' or '1' (a bit was new) an item}, {'missing'} (no
-- filter), {'staged'} (no filter, but staging has the items now), {'filter'}
-- (another one than the caller knows), {'staging', its header} or {'companion'}
-- (a foreign key).
local function same(key, fixed, fingerprint, size)
  return redis.call('GETRANGE', key, ARGV[4], ARGV[4] + #fixed - 1) == fixed
    and redis.call('GETRANGE', key, -8, -1) == fingerprint
    and redis.call('STRLEN', key) == tonumber(size)
end

local function set(key, k, offsets)
  local call, added, fresh, left = redis.call, {}, '0', tonumber(k)
  for offset in string.gmatch(offsets, '%d+') do
    if call('SETBIT', key, offset, '1') == 0 then
      fresh = '1'
    end
    left = left - 1
    if left == 0 then
      added[#added + 1] = fresh
      fresh, left = '0', tonumber(k)
    end
  end
  return table.concat(added)
end

local staging_only = ARGV[15] == 'staging'
local magic = staging_only and '' or redis.call('GETRANGE', KEYS[1], 0, 7)
local missing = magic == '' or magic == ARGV[3]
if not missing and not (ARGV[5] ~= '' and magic == ARGV[1] and same(KEYS[1], ARGV[5], ARGV[6], ARGV[7])) then
  return {'filter'}
end
local staged = redis.call('GETRANGE', KEYS[2], 0, 7)
if staged ~= '' then
  if staged ~= ARGV[2] then
    return {'companion'}
  elseif ARGV[5] ~= '' and same(KEYS[2], ARGV[5], ARGV[6], ARGV[7]) then
    set(KEYS[2], ARGV[8], ARGV[9])
  elseif ARGV[10] ~= '' and same(KEYS[2], ARGV[10], ARGV[11], ARGV[12]) then
    set(KEYS[2], ARGV[13], ARGV[14])
  else
    return {'staging', redis.call('GETRANGE', KEYS[2], 0, 191)}
  end
end
if missing then
  return {staged == '' and 'missing' or 'staged'}
end
local added = set(KEYS[1], ARGV[8], ARGV[9])
if ARGV[15] == 'write' then
  redis.call('SETRANGE', KEYS[1], 0, magic)
end
return {'added', added}
