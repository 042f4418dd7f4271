-- Health of a GemmaServing for Argo CD, from its conditions. Degraded ends a sync, so it is for what waits for a person.
local health = {status = "Progressing", message = "The operator has not reported yet"}
local status = obj.status or {}
if status.conditions == nil then
  return health
end
if status.observedGeneration ~= obj.metadata.generation then
  health.message = "The operator has not seen the newest spec yet"
  return health
end
local found = {}
for _, condition in ipairs(status.conditions) do
  found[condition.type] = condition
end
local function holds(name)
  return found[name] ~= nil and found[name].status == "True"
end
local function because(code, name)
  health.status = code
  if found[name] ~= nil then
    health.message = found[name].message
  end
  return health
end
if holds("Stalled") then
  return because("Degraded", "Stalled")
end
if holds("Reconciling") then
  return because("Progressing", "Reconciling")
end
if found["Reconciling"] ~= nil and found["Reconciling"].reason == "Paused" then
  return because("Suspended", "Reconciling")
end
if holds("Ready") then
  return because("Healthy", "Ready")
end
return because("Progressing", "Ready")
