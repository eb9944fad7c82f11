-- Prelude of the scripts that must find the filter that their caller saw: BF.INFO's
-- Size, which tells capacity and rate, or '' where no filter is.
local function size(key)
  if redis.call('EXISTS', key) == 0 then
    return ''
  end
  local info = redis.call('BF.INFO', key)
  for i = 1, #info, 2 do
    if (info[i].ok or info[i]) == 'Size' then
      return tostring(info[i + 1])
    end
  end
end
