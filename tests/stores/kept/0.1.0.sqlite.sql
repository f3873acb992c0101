BEGIN TRANSACTION;
CREATE TABLE lro_begins (method TEXT NOT NULL, lane INTEGER NOT NULL,
    at INTEGER NOT NULL, until INTEGER NOT NULL);
CREATE TABLE lro_checkpoints (name TEXT, key TEXT, value TEXT NOT NULL, PRIMARY KEY (name, key));
CREATE TABLE lro_inputs (name TEXT PRIMARY KEY, request TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "lro_inputs" VALUES('operations/QYPlQjFLPeOE_ZHmZ7cHOA-','["type.googleapis.com/acme.kept.v1.Sample",{"text":"door"}]');
INSERT INTO "lro_inputs" VALUES('projects/p/operations/QYPlQUcGwRkwMTLZwgH3miM','["type.googleapis.com/acme.kept.v1.Sample",{"text":"it''s \"né\" \\ \n😀","count":"4611686018427387904","small":-7,"ratio":0.1,"yes":true,"data":"AP8=","at":"2026-02-28T23:59:59.123456Z","span":"-1.500s","parts":[{"label":"a"},{"label":"b"}],"labels":{"":"x","y.z":""},"free":{"list":[1.0,null,{"deep":true}]}}]');
CREATE TABLE lro_minutes (step INTEGER, minute INTEGER, method TEXT, counts TEXT NOT NULL, PRIMARY KEY (step, minute, method));
INSERT INTO "lro_minutes" VALUES(1,31557601,'acme.kept.v1.Kept.Copy','{"starts.started": 1, "queue.0": 1, "queue.sum": 0.0, "attempt.succeeded.0": 1, "attempt.succeeded.sum": 0.0, "operation.succeeded.0": 1, "operation.succeeded.sum": 0.0, "ends.succeeded": 1}');
INSERT INTO "lro_minutes" VALUES(5,31557600,'acme.kept.v1.Kept.Copy','{"starts.started": 1, "queue.0": 1, "queue.sum": 0.0, "attempt.succeeded.0": 1, "attempt.succeeded.sum": 0.0, "operation.succeeded.0": 1, "operation.succeeded.sum": 0.0, "ends.succeeded": 1}');
INSERT INTO "lro_minutes" VALUES(30,31557600,'acme.kept.v1.Kept.Copy','{"starts.started": 1, "queue.0": 1, "queue.sum": 0.0, "attempt.succeeded.0": 1, "attempt.succeeded.sum": 0.0, "operation.succeeded.0": 1, "operation.succeeded.sum": 0.0, "ends.succeeded": 1}');
INSERT INTO "lro_minutes" VALUES(1,31557601,'acme.kept.v1.Kept.Refuse','{"starts.started": 1, "queue.0": 1, "queue.sum": 0.0, "attempt.failed.RESOURCE_EXHAUSTED.0": 1, "attempt.failed.RESOURCE_EXHAUSTED.sum": 0.0, "operation.failed.RESOURCE_EXHAUSTED.0": 1, "operation.failed.RESOURCE_EXHAUSTED.sum": 0.0, "ends.failed.RESOURCE_EXHAUSTED": 1}');
INSERT INTO "lro_minutes" VALUES(5,31557600,'acme.kept.v1.Kept.Refuse','{"starts.started": 1, "queue.0": 1, "queue.sum": 0.0, "attempt.failed.RESOURCE_EXHAUSTED.0": 1, "attempt.failed.RESOURCE_EXHAUSTED.sum": 0.0, "operation.failed.RESOURCE_EXHAUSTED.0": 1, "operation.failed.RESOURCE_EXHAUSTED.sum": 0.0, "ends.failed.RESOURCE_EXHAUSTED": 1}');
INSERT INTO "lro_minutes" VALUES(30,31557600,'acme.kept.v1.Kept.Refuse','{"starts.started": 1, "queue.0": 1, "queue.sum": 0.0, "attempt.failed.RESOURCE_EXHAUSTED.0": 1, "attempt.failed.RESOURCE_EXHAUSTED.sum": 0.0, "operation.failed.RESOURCE_EXHAUSTED.0": 1, "operation.failed.RESOURCE_EXHAUSTED.sum": 0.0, "ends.failed.RESOURCE_EXHAUSTED": 1}');
INSERT INTO "lro_minutes" VALUES(1,31557601,'acme.kept.v1.Kept.Hold','{"starts.started": 1, "queue.0": 1, "queue.sum": 0.0}');
INSERT INTO "lro_minutes" VALUES(5,31557600,'acme.kept.v1.Kept.Hold','{"starts.started": 1, "queue.0": 1, "queue.sum": 0.0}');
INSERT INTO "lro_minutes" VALUES(30,31557600,'acme.kept.v1.Kept.Hold','{"starts.started": 1, "queue.0": 1, "queue.sum": 0.0}');
INSERT INTO "lro_minutes" VALUES(1,31557601,'','{"lease_margin.7": 1, "lease_margin.sum": 15.0}');
INSERT INTO "lro_minutes" VALUES(5,31557600,'','{"lease_margin.7": 1, "lease_margin.sum": 15.0}');
INSERT INTO "lro_minutes" VALUES(30,31557600,'','{"lease_margin.7": 1, "lease_margin.sum": 15.0}');
CREATE TABLE lro_operations (name TEXT PRIMARY KEY, parent TEXT NOT NULL, method TEXT NOT NULL, state TEXT NOT NULL, metadata TEXT, result TEXT, create_time INTEGER NOT NULL, update_time INTEGER NOT NULL, start_time INTEGER, end_time INTEGER, expire_time INTEGER, cancel_requested INTEGER NOT NULL, cancel_time INTEGER, attempt INTEGER NOT NULL, lost_attempts INTEGER NOT NULL, owner TEXT NOT NULL, lease_until INTEGER, caller TEXT NOT NULL, request_id TEXT NOT NULL, target TEXT NOT NULL, version INTEGER NOT NULL, keys TEXT, trace_context TEXT NOT NULL, notify TEXT NOT NULL, notify_at INTEGER, rank INTEGER NOT NULL DEFAULT 0, lane INTEGER NOT NULL DEFAULT 0, begin_before INTEGER, failures TEXT NOT NULL DEFAULT '', origin TEXT NOT NULL DEFAULT '', sent_time INTEGER, rerun TEXT NOT NULL DEFAULT '');
INSERT INTO "lro_operations" VALUES('operations/QYPlQF-HfRUesgMwKwurlUf','','acme.kept.v1.Kept.Copy','SUCCEEDED','["type.googleapis.com/acme.kept.v1.Sample",{"text":"half","ratio":0.5}]','["type.googleapis.com/acme.kept.v1.Sample",{"text":"it''s \"né\" \\ \n😀","count":"4611686018427387904","small":-7,"ratio":0.1,"yes":true,"data":"AP8=","at":"2026-02-28T23:59:59.123456Z","span":"-1.500s","parts":[{"label":"a"},{"label":"b"}],"labels":{"":"x","y.z":""},"free":{"list":[1.0,null,{"deep":true}]}}]',1893456000000000,1893456000000000,1893456000000000,1893456000000000,1896048000000000,0,NULL,1,0,'',NULL,'ann','5bb0ff1c-9d5a-4f5c-8a6e-3b1a8a0f4f11','',4,'{"k870752457fdb610a":"3afe6064584ea545"}','','',NULL,0,0,NULL,'','',NULL,'');
INSERT INTO "lro_operations" VALUES('projects/p/operations/QYPlQUcGwRkwMTLZwgH3miM','projects/p','acme.kept.v1.Kept.Refuse','FAILED','["type.googleapis.com/lro.v1.OperationMetadata",{"createTime":"2030-01-01T00:00:01Z","endTime":"2030-01-01T00:00:01Z","verb":"refuse","apiVersion":"v1","startTime":"2030-01-01T00:00:01Z","expireTime":"2030-01-31T00:00:01Z"}]','{"code":8,"message":"the tray is empty","details":[["type.googleapis.com/google.rpc.ErrorInfo",{"reason":"NO_PAPER","domain":"acme.test"}],["type.googleapis.com/google.rpc.QuotaFailure",{"violations":[{"subject":"user:ann","description":"no sheets are left"}]}]]}',1893456001000000,1893456001000000,1893456001000000,1893456001000000,1896048001000000,0,NULL,1,0,'',NULL,'','','',3,'{"k870752457fdb610a":"-"}','','',NULL,0,0,NULL,'{"count":1,"last":[[1,1893456001000,"StatusError","the tray is empty"]]}','',NULL,'');
INSERT INTO "lro_operations" VALUES('operations/QYPlQjFLPeOE_ZHmZ7cHOA-','','acme.kept.v1.Kept.Hold','IN_PROGRESS','["type.googleapis.com/lro.v1.OperationMetadata",{"createTime":"2030-01-01T00:00:02Z","target":"door","verb":"hold","apiVersion":"v1","startTime":"2030-01-01T00:00:02Z"}]',NULL,1893456002000000,1893456002000000,1893456002000000,NULL,NULL,0,NULL,1,0,'XnpQnvWJ91T3N5uQ',1893456017000000,'','','door',2,'{"k870752457fdb610a":"-"}','','',NULL,0,0,NULL,'','',NULL,'');
CREATE TABLE lro_paused (method TEXT PRIMARY KEY, since INTEGER NOT NULL);
CREATE TABLE lro_schedules (name TEXT PRIMARY KEY, version INTEGER NOT NULL,
    schedule TEXT NOT NULL);
CREATE TABLE lro_secrets (id INTEGER PRIMARY KEY CHECK (id = 1), key BLOB NOT NULL);
INSERT INTO "lro_secrets" VALUES(1,X'514E789D63DD5E8B0DC3194707D059AF65C151942E52EBF6DBB60FEE491C8602F6DE716DE198776BA2B40B2DEB9D125E557DE1B0E7BCFCD0F5CFDBBFCC49F978');
CREATE TABLE lro_starts (method TEXT, caller TEXT, request_id TEXT, fingerprint TEXT NOT NULL, at INTEGER NOT NULL, name TEXT NOT NULL, first TEXT NOT NULL, PRIMARY KEY (method, caller, request_id));
INSERT INTO "lro_starts" VALUES('acme.kept.v1.Kept.Copy','ann','5bb0ff1c-9d5a-4f5c-8a6e-3b1a8a0f4f11','864aba63d71e6ec57198dbd9aaea2772f7ccb936c52cdbe5bc02d8dc5f3caa1b e0fa5f0dc2245ede6f66b6c1e982405b21d1fc328a349640d395971e35537aaf',1893456000000000,'operations/QYPlQF-HfRUesgMwKwurlUf','["operations/QYPlQF-HfRUesgMwKwurlUf","","acme.kept.v1.Kept.Copy","IN_PROGRESS",null,null,1893456000000000,1893456000000000,1893456000000000,null,null,0,null,1,0,"XnpQnvWJ91T3N5uQ",1893456015000000,"ann","5bb0ff1c-9d5a-4f5c-8a6e-3b1a8a0f4f11","",2,"{\"k870752457fdb610a\":\"-\"}","","",null,0,0,null,"","",null,""]');
CREATE TABLE lro_workers (owner TEXT PRIMARY KEY, host TEXT NOT NULL,
    pid INTEGER NOT NULL, version TEXT NOT NULL, methods TEXT NOT NULL, capacity INTEGER,
    start_time INTEGER NOT NULL, seen_time INTEGER NOT NULL, alive_until INTEGER NOT NULL,
    lost INTEGER NOT NULL);
INSERT INTO "lro_workers" VALUES('XnpQnvWJ91T3N5uQ','vm',17807,'0.1.0','["acme.kept.v1.Kept.Copy","acme.kept.v1.Kept.Refuse","acme.kept.v1.Kept.Hold"]',2,1893456062000000,1893456062000000,1893456077000000,0);
CREATE TRIGGER lro_checkpoints_ended AFTER UPDATE OF state ON lro_operations WHEN new.state NOT IN ('IN_PROGRESS', 'HIDDEN') BEGIN DELETE FROM lro_checkpoints WHERE name = old.name; END;
CREATE TRIGGER lro_checkpoints_removed AFTER DELETE ON lro_operations BEGIN DELETE FROM lro_checkpoints WHERE name = old.name; END;
CREATE INDEX lro_operations_order ON lro_operations (parent, create_time DESC, name);
CREATE INDEX lro_operations_states ON lro_operations (parent, state, create_time DESC, name);
CREATE INDEX lro_operations_waiting ON lro_operations
        (method, (lost_attempts >= 2), lane, rank, lease_until, name) WHERE owner = '' AND lease_until IS NOT NULL;
CREATE INDEX lro_operations_running ON lro_operations (method, owner, lease_until) WHERE owner != '';
CREATE INDEX lro_operations_lanes ON lro_operations (method, lane) WHERE owner != '' AND lane != 0;
CREATE INDEX lro_operations_unbegun ON lro_operations (begin_before) WHERE owner = '' AND lease_until IS NOT NULL AND attempt = 0 AND begin_before IS NOT NULL;
CREATE INDEX lro_operations_sent ON lro_operations (method, lane, lease_until)
        WHERE sent_time IS NOT NULL;
CREATE INDEX lro_operations_expiry ON lro_operations ((expire_time
    + CASE WHEN notify_at IS NULL THEN 0 ELSE 345600000000 END))
        WHERE expire_time IS NOT NULL;
CREATE INDEX lro_operations_debts ON lro_operations (notify_at) WHERE notify_at IS NOT NULL;
CREATE UNIQUE INDEX lro_operations_targets ON lro_operations (target) WHERE target != '' AND state IN ('IN_PROGRESS', 'HIDDEN');
CREATE INDEX lro_begins_latest ON lro_begins (method, lane, at);
CREATE INDEX lro_begins_over ON lro_begins (until);
CREATE INDEX lro_starts_age ON lro_starts (at);
CREATE INDEX lro_operations_by_k870752457fdb610a ON lro_operations (parent, coalesce(json_extract(keys, '$.k870752457fdb610a'), '?'), create_time DESC, name);
COMMIT;
PRAGMA application_id = 1819438849;
PRAGMA user_version = 2;
