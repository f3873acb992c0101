BEGIN;
CREATE SCHEMA IF NOT EXISTS "lro";
SET LOCAL search_path TO "lro";
CREATE TABLE lro_operations (id UUID PRIMARY KEY, parent_id UUID NOT NULL, target_id UUID,
    name TEXT COLLATE "C" NOT NULL, parent TEXT COLLATE "C" NOT NULL, method TEXT COLLATE "C" NOT NULL, state TEXT COLLATE "C" NOT NULL, metadata TEXT, result TEXT, create_time BIGINT NOT NULL, update_time BIGINT NOT NULL, start_time BIGINT, end_time BIGINT, expire_time BIGINT, cancel_requested BIGINT NOT NULL, cancel_time BIGINT, attempt BIGINT NOT NULL, lost_attempts BIGINT NOT NULL, owner TEXT COLLATE "C" NOT NULL, lease_until BIGINT, caller TEXT COLLATE "C" NOT NULL, request_id TEXT COLLATE "C" NOT NULL, target TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL, keys TEXT COLLATE "C", trace_context TEXT COLLATE "C" NOT NULL, notify TEXT COLLATE "C" NOT NULL, notify_at BIGINT, rank BIGINT NOT NULL DEFAULT 0, lane BIGINT NOT NULL DEFAULT 0, begin_before BIGINT, failures TEXT COLLATE "C" NOT NULL DEFAULT '', origin TEXT COLLATE "C" NOT NULL DEFAULT '', sent_time BIGINT, rerun TEXT COLLATE "C" NOT NULL DEFAULT '', has_checkpoints BOOLEAN NOT NULL DEFAULT false)
    WITH (fillfactor = 80);
CREATE INDEX lro_operations_order ON lro_operations (parent_id, create_time DESC);
CREATE INDEX lro_operations_by_state ON lro_operations ((parent_id::text || '/' || state), create_time DESC);
CREATE INDEX lro_operations_waiting ON lro_operations
    (method, (lost_attempts >= 2), lane, rank, lease_until) WHERE owner = '' AND lease_until IS NOT NULL;
CREATE INDEX lro_operations_running ON lro_operations (method, owner, lease_until)
    WHERE owner <> '';
CREATE INDEX lro_operations_lanes ON lro_operations (method, lane) WHERE owner <> '' AND lane <> 0;
CREATE INDEX lro_operations_unbegun ON lro_operations (begin_before) WHERE owner = '' AND lease_until IS NOT NULL AND attempt = 0 AND begin_before IS NOT NULL;
CREATE INDEX lro_operations_sent ON lro_operations (method, lane, lease_until) WHERE sent_time IS NOT NULL;
CREATE TABLE lro_begins (method TEXT COLLATE "C" NOT NULL, lane BIGINT NOT NULL, at BIGINT NOT NULL,
    until BIGINT NOT NULL);
CREATE INDEX lro_begins_latest ON lro_begins (method, lane, at);
CREATE INDEX lro_begins_over ON lro_begins (until);
CREATE TABLE lro_paused (method TEXT COLLATE "C" NOT NULL PRIMARY KEY, since BIGINT NOT NULL);
CREATE TABLE lro_workers (owner TEXT COLLATE "C" NOT NULL PRIMARY KEY, host TEXT COLLATE "C" NOT NULL, pid BIGINT NOT NULL,
    version TEXT COLLATE "C" NOT NULL, methods TEXT NOT NULL, capacity BIGINT, start_time BIGINT NOT NULL,
    seen_time BIGINT NOT NULL, alive_until BIGINT NOT NULL, lost INTEGER NOT NULL);
CREATE TABLE lro_schedules (name TEXT COLLATE "C" NOT NULL PRIMARY KEY, version BIGINT NOT NULL,
    schedule TEXT NOT NULL);
CREATE TABLE lro_checkpoints (id UUID, key TEXT COLLATE "C" NOT NULL, value TEXT NOT NULL, PRIMARY KEY (id, key));
CREATE FUNCTION lro_forget_checkpoints() RETURNS trigger
    LANGUAGE plpgsql SET search_path FROM CURRENT
    AS 'BEGIN DELETE FROM lro_checkpoints WHERE id = old.id; RETURN NULL; END';
CREATE TRIGGER lro_checkpoints_ended AFTER UPDATE OF state ON lro_operations FOR EACH ROW
    WHEN (old.has_checkpoints AND new.state NOT IN ('IN_PROGRESS', 'HIDDEN'))
    EXECUTE FUNCTION lro_forget_checkpoints();
CREATE TRIGGER lro_checkpoints_removed AFTER DELETE ON lro_operations FOR EACH ROW
    WHEN (old.has_checkpoints) EXECUTE FUNCTION lro_forget_checkpoints();
CREATE INDEX lro_operations_expiry ON lro_operations ((expire_time
    + CASE WHEN notify_at IS NULL THEN 0 ELSE 345600000000 END)) WHERE expire_time IS NOT NULL;
CREATE INDEX lro_operations_debts ON lro_operations (notify_at) WHERE notify_at IS NOT NULL;
CREATE UNIQUE INDEX lro_operations_targets ON lro_operations (target_id)
    WHERE target_id IS NOT NULL AND state IN ('IN_PROGRESS', 'HIDDEN');
CREATE TABLE lro_inputs (id UUID PRIMARY KEY, request TEXT NOT NULL);
CREATE TABLE lro_starts (id UUID PRIMARY KEY, operation UUID NOT NULL, fingerprint TEXT NOT NULL,
    at BIGINT NOT NULL, first TEXT NOT NULL);
CREATE INDEX lro_starts_age ON lro_starts (at);
CREATE TABLE lro_minutes (step INTEGER, minute BIGINT, method TEXT COLLATE "C" NOT NULL, counts JSONB NOT NULL,
    PRIMARY KEY (step, minute, method));
CREATE TABLE lro_secrets (id INTEGER PRIMARY KEY CHECK (id = 1), key BYTEA NOT NULL);
CREATE TABLE lro_versions (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL);
INSERT INTO lro_versions VALUES (1, 2);
CREATE INDEX lro_operations_by_k870752457fdb610a ON lro_operations ((parent_id::text || '/' || coalesce(keys::json ->> 'k870752457fdb610a', '?')), create_time DESC);
COMMIT;
INSERT INTO lro.lro_inputs (id, request) VALUES ('3eab5627-e189-ab1a-1fe2-ce224f2bc3e6', E'["type.googleapis.com/acme.kept.v1.Sample",{"text":"it''s \\"né\\" \\\\ \\n😀","count":"4611686018427387904","small":-7,"ratio":0.1,"yes":true,"data":"AP8=","at":"2026-02-28T23:59:59.123456Z","span":"-1.500s","parts":[{"label":"a"},{"label":"b"}],"labels":{"":"x","y.z":""},"free":{"list":[1.0,null,{"deep":true}]}}]');
INSERT INTO lro.lro_inputs (id, request) VALUES ('975de80a-24e6-d57d-90b4-7df7d89073ce', '["type.googleapis.com/acme.kept.v1.Sample",{"text":"door"}]');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('1', '31557601', '', '{"lease_margin.7": 1, "lease_margin.sum": 15.0}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('1', '31557601', 'acme.kept.v1.Kept.Copy', '{"queue.0": 1, "queue.sum": 0.0, "ends.succeeded": 1, "starts.started": 1, "attempt.succeeded.0": 1, "attempt.succeeded.sum": 0.0, "operation.succeeded.0": 1, "operation.succeeded.sum": 0.0}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('1', '31557601', 'acme.kept.v1.Kept.Hold', '{"queue.0": 1, "queue.sum": 0.0, "starts.started": 1}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('1', '31557601', 'acme.kept.v1.Kept.Refuse', '{"queue.0": 1, "queue.sum": 0.0, "starts.started": 1, "ends.failed.RESOURCE_EXHAUSTED": 1, "attempt.failed.RESOURCE_EXHAUSTED.0": 1, "attempt.failed.RESOURCE_EXHAUSTED.sum": 0.0, "operation.failed.RESOURCE_EXHAUSTED.0": 1, "operation.failed.RESOURCE_EXHAUSTED.sum": 0.0}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('30', '31557600', 'acme.kept.v1.Kept.Refuse', '{"queue.0": 1, "queue.sum": 0.0, "starts.started": 1, "ends.failed.RESOURCE_EXHAUSTED": 1, "attempt.failed.RESOURCE_EXHAUSTED.0": 1, "attempt.failed.RESOURCE_EXHAUSTED.sum": 0.0, "operation.failed.RESOURCE_EXHAUSTED.0": 1, "operation.failed.RESOURCE_EXHAUSTED.sum": 0.0}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('30', '31557600', '', '{"lease_margin.7": 1, "lease_margin.sum": 15.0}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('30', '31557600', 'acme.kept.v1.Kept.Copy', '{"queue.0": 1, "queue.sum": 0.0, "ends.succeeded": 1, "starts.started": 1, "attempt.succeeded.0": 1, "attempt.succeeded.sum": 0.0, "operation.succeeded.0": 1, "operation.succeeded.sum": 0.0}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('30', '31557600', 'acme.kept.v1.Kept.Hold', '{"queue.0": 1, "queue.sum": 0.0, "starts.started": 1}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('5', '31557600', '', '{"lease_margin.7": 1, "lease_margin.sum": 15.0}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('5', '31557600', 'acme.kept.v1.Kept.Copy', '{"queue.0": 1, "queue.sum": 0.0, "ends.succeeded": 1, "starts.started": 1, "attempt.succeeded.0": 1, "attempt.succeeded.sum": 0.0, "operation.succeeded.0": 1, "operation.succeeded.sum": 0.0}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('5', '31557600', 'acme.kept.v1.Kept.Hold', '{"queue.0": 1, "queue.sum": 0.0, "starts.started": 1}');
INSERT INTO lro.lro_minutes (step, minute, method, counts) VALUES ('5', '31557600', 'acme.kept.v1.Kept.Refuse', '{"queue.0": 1, "queue.sum": 0.0, "starts.started": 1, "ends.failed.RESOURCE_EXHAUSTED": 1, "attempt.failed.RESOURCE_EXHAUSTED.0": 1, "attempt.failed.RESOURCE_EXHAUSTED.sum": 0.0, "operation.failed.RESOURCE_EXHAUSTED.0": 1, "operation.failed.RESOURCE_EXHAUSTED.sum": 0.0}');
INSERT INTO lro.lro_operations (id, parent_id, target_id, name, parent, method, state, metadata, result, create_time, update_time, start_time, end_time, expire_time, cancel_requested, cancel_time, attempt, lost_attempts, owner, lease_until, caller, request_id, target, version, keys, trace_context, notify, notify_at, rank, lane, begin_before, failures, origin, sent_time, rerun, has_checkpoints) VALUES ('3eab5627-e189-ab1a-1fe2-ce224f2bc3e6', 'd2e8dd49-9933-9d91-8a49-07bb69c73b77', NULL, 'projects/p/operations/QYPlQUcv66xAFf--AF2MfAT', 'projects/p', 'acme.kept.v1.Kept.Refuse', 'FAILED', '["type.googleapis.com/lro.v1.OperationMetadata",{"createTime":"2030-01-01T00:00:01Z","endTime":"2030-01-01T00:00:01Z","verb":"refuse","apiVersion":"v1","startTime":"2030-01-01T00:00:01Z","expireTime":"2030-01-31T00:00:01Z"}]', '{"code":8,"message":"the tray is empty","details":[["type.googleapis.com/google.rpc.ErrorInfo",{"reason":"NO_PAPER","domain":"acme.test"}],["type.googleapis.com/google.rpc.QuotaFailure",{"violations":[{"subject":"user:ann","description":"no sheets are left"}]}]]}', '1893456001000000', '1893456001000000', '1893456001000000', '1893456001000000', '1896048001000000', '0', NULL, '1', '0', '', NULL, '', '', '', '3', '{"k870752457fdb610a":"-"}', '', '', NULL, '0', '0', NULL, '{"count":1,"last":[[1,1893456001000,"StatusError","the tray is empty"]]}', '', NULL, '', 'false');
INSERT INTO lro.lro_operations (id, parent_id, target_id, name, parent, method, state, metadata, result, create_time, update_time, start_time, end_time, expire_time, cancel_requested, cancel_time, attempt, lost_attempts, owner, lease_until, caller, request_id, target, version, keys, trace_context, notify, notify_at, rank, lane, begin_before, failures, origin, sent_time, rerun, has_checkpoints) VALUES ('975de80a-24e6-d57d-90b4-7df7d89073ce', 'cae66941-d9ef-bd40-4e4d-88758ea67670', 'fc06f46b-fbed-7c5c-be29-e8c1943135ed', 'operations/QYPlQjFsy_dG5fmY3ZOko_Z', '', 'acme.kept.v1.Kept.Hold', 'IN_PROGRESS', '["type.googleapis.com/lro.v1.OperationMetadata",{"createTime":"2030-01-01T00:00:02Z","target":"door","verb":"hold","apiVersion":"v1","startTime":"2030-01-01T00:00:02Z"}]', NULL, '1893456002000000', '1893456002000000', '1893456002000000', NULL, NULL, '0', NULL, '1', '0', 'LzF0VcOIKDgQLYuS', '1893456017000000', '', '', 'door', '2', '{"k870752457fdb610a":"-"}', '', '', NULL, '0', '0', NULL, '', '', NULL, '', 'false');
INSERT INTO lro.lro_operations (id, parent_id, target_id, name, parent, method, state, metadata, result, create_time, update_time, start_time, end_time, expire_time, cancel_requested, cancel_time, attempt, lost_attempts, owner, lease_until, caller, request_id, target, version, keys, trace_context, notify, notify_at, rank, lane, begin_before, failures, origin, sent_time, rerun, has_checkpoints) VALUES ('c5820c73-6c6a-05ea-fce7-ae789e39a20b', 'cae66941-d9ef-bd40-4e4d-88758ea67670', NULL, 'operations/QYPlQF-1kD_F6tWxoQeRtMD', '', 'acme.kept.v1.Kept.Copy', 'SUCCEEDED', '["type.googleapis.com/acme.kept.v1.Sample",{"text":"half","ratio":0.5}]', E'["type.googleapis.com/acme.kept.v1.Sample",{"text":"it''s \\"né\\" \\\\ \\n😀","count":"4611686018427387904","small":-7,"ratio":0.1,"yes":true,"data":"AP8=","at":"2026-02-28T23:59:59.123456Z","span":"-1.500s","parts":[{"label":"a"},{"label":"b"}],"labels":{"":"x","y.z":""},"free":{"list":[1.0,null,{"deep":true}]}}]', '1893456000000000', '1893456000000000', '1893456000000000', '1893456000000000', '1896048000000000', '0', NULL, '1', '0', '', NULL, 'ann', '5bb0ff1c-9d5a-4f5c-8a6e-3b1a8a0f4f11', '', '4', '{"k870752457fdb610a":"3afe6064584ea545"}', '', '', NULL, '0', '0', NULL, '', '', NULL, '', 'false');
INSERT INTO lro.lro_secrets (id, key) VALUES ('1', E'\\x20f5408f3777aeac22b3c81a045ed13efe30665b3f602f0a8f0697a124ac9ba7783d90caaac045dac7ce7d06d74684c5fdacb5066a0809878c0d7cb19ae8529c');
INSERT INTO lro.lro_starts (id, operation, fingerprint, at, first) VALUES ('5be2e922-d282-fa85-fbdd-cb8bfd9b5007', 'c5820c73-6c6a-05ea-fce7-ae789e39a20b', '864aba63d71e6ec57198dbd9aaea2772f7ccb936c52cdbe5bc02d8dc5f3caa1b e0fa5f0dc2245ede6f66b6c1e982405b21d1fc328a349640d395971e35537aaf', '1893456000000000', E'["operations/QYPlQF-1kD_F6tWxoQeRtMD","","acme.kept.v1.Kept.Copy","IN_PROGRESS",null,null,1893456000000000,1893456000000000,1893456000000000,null,null,0,null,1,0,"LzF0VcOIKDgQLYuS",1893456015000000,"ann","5bb0ff1c-9d5a-4f5c-8a6e-3b1a8a0f4f11","",2,"{\\"k870752457fdb610a\\":\\"-\\"}","","",null,0,0,null,"","",null,""]');
INSERT INTO lro.lro_workers (owner, host, pid, version, methods, capacity, start_time, seen_time, alive_until, lost) VALUES ('LzF0VcOIKDgQLYuS', 'vm', '17807', '0.1.0', '["acme.kept.v1.Kept.Copy","acme.kept.v1.Kept.Refuse","acme.kept.v1.Kept.Hold"]', '2', '1893456062000000', '1893456062000000', '1893456077000000', '0');
