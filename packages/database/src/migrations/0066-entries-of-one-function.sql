-- compatible-with: 41
-- Meters of one function that are charged together have their next entries from the same moment on: several starts, trials, and its calls.
-- The second entry was refused, and its meter parked. That each is charged once follows from the statement, which moves or ends the meter
-- as it writes the entry.

drop index credit_usage_function_once;
