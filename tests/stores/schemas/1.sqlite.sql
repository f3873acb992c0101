BEGIN TRANSACTION;
CREATE TABLE inputs (name TEXT PRIMARY KEY, request TEXT NOT NULL);
CREATE TABLE minutes (step INTEGER, minute INTEGER, method TEXT, counts TEXT NOT NULL, PRIMARY KEY (step, minute, method));
CREATE TABLE operations (name TEXT PRIMARY KEY, parent TEXT NOT NULL, method TEXT NOT NULL, state TEXT NOT NULL, metadata TEXT, result TEXT, create_time INTEGER NOT NULL, update_time INTEGER NOT NULL, start_time INTEGER, end_time INTEGER, expire_time INTEGER, cancel_requested INTEGER NOT NULL, cancel_time INTEGER, attempt INTEGER NOT NULL, lost_attempts INTEGER NOT NULL, owner TEXT NOT NULL, lease_until INTEGER, caller TEXT NOT NULL, request_id TEXT NOT NULL, target TEXT NOT NULL, version INTEGER NOT NULL, keys TEXT, trace_context TEXT NOT NULL, notify TEXT NOT NULL, notify_at INTEGER);
CREATE TABLE secrets (id INTEGER PRIMARY KEY CHECK (id = 1), key BLOB NOT NULL);
CREATE TABLE starts (method TEXT, caller TEXT, request_id TEXT, fingerprint TEXT NOT NULL, at INTEGER NOT NULL, name TEXT NOT NULL, first TEXT NOT NULL, PRIMARY KEY (method, caller, request_id));
CREATE TABLE totals (method TEXT PRIMARY KEY, counts TEXT NOT NULL);
CREATE INDEX operations_order ON operations (parent, create_time DESC, name);
CREATE INDEX operations_states ON operations (parent, state, create_time DESC, name);
CREATE INDEX operations_leases ON operations (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX operations_expiry ON operations ((expire_time
    + CASE WHEN notify_at IS NULL THEN 0 ELSE 345600000000 END)) WHERE expire_time IS NOT NULL;
CREATE INDEX operations_debts ON operations (notify_at) WHERE notify_at IS NOT NULL;
CREATE UNIQUE INDEX operations_targets ON operations (target) WHERE target != '' AND state IN ('IN_PROGRESS', 'HIDDEN');
CREATE INDEX starts_age ON starts (at);
CREATE INDEX starts_names ON starts (name);
COMMIT;
PRAGMA application_id = 1819438849;
PRAGMA user_version = 1;
