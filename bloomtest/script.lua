-- What stands around a script that names a BF command. miniredis' redis.call raises
-- the error that is an element of an array, and cannot convert a status inside one.
-- So BF commands sent by redis.pcall here answer with the raw reply as one string,
-- which is parsed as a real server does. The script itself stands in the place of @SCRIPT@, whose line
-- must stay the first: comments go, and all lines become one.
local redis = (function(redis)
  local names = @NAMES@
  local resp = 2
  redis.pcall('@WRAPPED@', resp)
  local function parse(s, i)
    local e = string.find(s, '\r\n', i, true)
    local t, v = string.sub(s, i, i), string.sub(s, i + 1, e - 1)
    local n = tonumber(v)
    i = e + 2
    if t == '+' then return {ok = v}, i end
    if t == '-' then return {err = v}, i end
    if t == ':' then return n, i end
    if t == '#' then return v == 't', i end
    if t == '_' then return nil, i end
    if t == '$' and n < 0 then return false, i end
    if t == '$' then return string.sub(s, i, i + n - 1), i + n + 2 end
    local r = {}
    if t == '%' then
      for _ = 1, n do
        local key
        key, i = parse(s, i)
        r[key], i = parse(s, i)
      end
      return {map = r}, i
    end
    for j = 1, n do
      r[j], i = parse(s, i)
    end
    return r, i
  end
  local function decode(r)
    if type(r) == 'string' then return (parse(r, 1)) end
    if string.find(r.err, 'Write commands are not allowed', 1, true) then
      r.err = 'ERR Write commands are not allowed from read-only scripts.'
    end
    return r
  end
  local function named(cmd) return type(cmd) == 'string' and names[string.upper(cmd)] end
  local function call(...)
    if not named((...)) then return redis.call(...) end
    local r = decode(redis.pcall(...))
    if type(r) == 'table' and r.err then
-- 4 is the script's own level: error, pcall, this function, the script.
      local _, where = pcall(error, '', 4)
      r.bloomtest = string.match(where, ':(%d+):') or '1'
      error(r)
    end
    return r
  end
  local function protected(...)
    if not named((...)) then return redis.pcall(...) end
    return decode(redis.pcall(...))
  end
  local function setresp(n)
    redis.setresp(n)
    resp = n
    redis.pcall('@WRAPPED@', resp)
  end
  local function final(ok, r)
    if not ok then
      if type(r) ~= 'table' or not r.bloomtest then error(r, 0) end
      return {err = r.err .. ' script: @SHA@, on @user_script:' .. r.bloomtest .. '.'}
    end
    if resp == 3 and type(r) == 'boolean' then return r and 1 or 0 end
    return r
  end
  return setmetatable({call = call, pcall = protected, setresp = setresp, bloomtest = final}, {__index = redis})
end)(redis)
local server = redis
return redis.bloomtest(pcall(function() @SCRIPT@
end))
