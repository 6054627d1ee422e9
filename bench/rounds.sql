-- Five rounds of building and dropping an in-memory table of 500,000 rows with an index.
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
  INSERT INTO t SELECT i, (i * 7919) % 500009, printf('%08d', i) || hex(zeroblob(60)) FROM n;
CREATE INDEX t_v ON t(v);
SELECT 1, count(*), sum(k), max(substr(v, 1, 8)) FROM t;
DROP TABLE t;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
  INSERT INTO t SELECT i, (i * 7919) % 500009, printf('%08d', i) || hex(zeroblob(60)) FROM n;
CREATE INDEX t_v ON t(v);
SELECT 2, count(*), sum(k), max(substr(v, 1, 8)) FROM t;
DROP TABLE t;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
  INSERT INTO t SELECT i, (i * 7919) % 500009, printf('%08d', i) || hex(zeroblob(60)) FROM n;
CREATE INDEX t_v ON t(v);
SELECT 3, count(*), sum(k), max(substr(v, 1, 8)) FROM t;
DROP TABLE t;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
  INSERT INTO t SELECT i, (i * 7919) % 500009, printf('%08d', i) || hex(zeroblob(60)) FROM n;
CREATE INDEX t_v ON t(v);
SELECT 4, count(*), sum(k), max(substr(v, 1, 8)) FROM t;
DROP TABLE t;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)
  INSERT INTO t SELECT i, (i * 7919) % 500009, printf('%08d', i) || hex(zeroblob(60)) FROM n;
CREATE INDEX t_v ON t(v);
SELECT 5, count(*), sum(k), max(substr(v, 1, 8)) FROM t;
DROP TABLE t;
