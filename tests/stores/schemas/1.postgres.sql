BEGIN;
CREATE SCHEMA IF NOT EXISTS "{schema}";
SET LOCAL search_path TO "{schema}";
CREATE TABLE operations (id UUID PRIMARY KEY, parent_id UUID NOT NULL, target_id UUID, name TEXT COLLATE "C" NOT NULL, parent TEXT COLLATE "C" NOT NULL, method TEXT COLLATE "C" NOT NULL, state TEXT COLLATE "C" NOT NULL, metadata TEXT, result TEXT, create_time BIGINT NOT NULL, update_time BIGINT NOT NULL, start_time BIGINT, end_time BIGINT, expire_time BIGINT, cancel_requested BIGINT NOT NULL, cancel_time BIGINT, attempt BIGINT NOT NULL, lost_attempts BIGINT NOT NULL, owner TEXT COLLATE "C" NOT NULL, lease_until BIGINT, caller TEXT COLLATE "C" NOT NULL, request_id TEXT COLLATE "C" NOT NULL, target TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL, keys TEXT COLLATE "C", trace_context TEXT COLLATE "C" NOT NULL, notify TEXT COLLATE "C" NOT NULL, notify_at BIGINT)
    WITH (fillfactor = 80);
CREATE INDEX operations_order ON operations (parent_id, create_time DESC);
CREATE INDEX operations_by_state ON operations ((parent_id::text || '/' || state), create_time DESC);
CREATE INDEX operations_leases ON operations (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX operations_expiry ON operations ((expire_time
    + CASE WHEN notify_at IS NULL THEN 0 ELSE 345600000000 END)) WHERE expire_time IS NOT NULL;
CREATE INDEX operations_debts ON operations (notify_at) WHERE notify_at IS NOT NULL;
CREATE UNIQUE INDEX operations_targets ON operations (target_id)
    WHERE target_id IS NOT NULL AND state IN ('IN_PROGRESS', 'HIDDEN');
CREATE TABLE inputs (id UUID PRIMARY KEY, request TEXT NOT NULL);
CREATE TABLE starts (id UUID PRIMARY KEY, operation UUID NOT NULL, fingerprint TEXT NOT NULL,
    at BIGINT NOT NULL, first TEXT NOT NULL);
CREATE INDEX starts_age ON starts (at);
CREATE INDEX starts_operation ON starts (operation);
CREATE TABLE minutes (step INTEGER, minute BIGINT, method TEXT COLLATE "C" NOT NULL, counts JSONB NOT NULL,
    PRIMARY KEY (step, minute, method));
CREATE TABLE totals (method TEXT COLLATE "C" NOT NULL PRIMARY KEY, counts JSONB NOT NULL);
CREATE TABLE secrets (id INTEGER PRIMARY KEY CHECK (id = 1), key BYTEA NOT NULL);
CREATE TABLE versions (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL);
INSERT INTO versions VALUES (1, 1);
COMMIT;
