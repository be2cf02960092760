-- Limits, order and fair shares by key.
-- compatible with: 1

-- include: functions/limits_v1.sql
-- include: functions/set_limits_v1.sql
