-- Five rounds of building and dropping an in-memory table of 500,000 rows with an index.
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
  INSERT INTO t SELECT i, (i * 7919) % 500009, printf('row %08d of round 1', i) FROM n;
CREATE INDEX t_k ON t(k);
SELECT 1, count(*), sum(k), max(v) FROM t;
DROP TABLE t;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
  INSERT INTO t SELECT i, (i * 7919) % 500009, printf('row %08d of round 2', i) FROM n;
CREATE INDEX t_k ON t(k);
SELECT 2, count(*), sum(k), max(v) FROM t;
DROP TABLE t;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
  INSERT INTO t SELECT i, (i * 7919) % 500009, printf('row %08d of round 3', i) FROM n;
CREATE INDEX t_k ON t(k);
SELECT 3, count(*), sum(k), max(v) FROM t;
DROP TABLE t;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
  INSERT INTO t SELECT i, (i * 7919) % 500009, printf('row %08d of round 4', i) FROM n;
CREATE INDEX t_k ON t(k);
SELECT 4, count(*), sum(k), max(v) FROM t;
DROP TABLE t;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
  INSERT INTO t SELECT i, (i * 7919) % 500009, printf('row %08d of round 5', i) FROM n;
CREATE INDEX t_k ON t(k);
SELECT 5, count(*), sum(k), max(v) FROM t;
DROP TABLE t;
