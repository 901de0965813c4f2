-- Version 1. A later version is a step of its own in `sqlite.rs`; this file stays as it is.
CREATE TABLE runs (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    kind        TEXT NOT NULL,
    scope       TEXT NOT NULL,
    idem_key    TEXT,
    idem_hash   BLOB,
    title       TEXT NOT NULL,
    model       TEXT NOT NULL,
    spec        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('ready', 'running', 'waiting', 'ended')),
    owner       TEXT,
    epoch       INTEGER NOT NULL DEFAULT 0,
    crashes     INTEGER NOT NULL DEFAULT 0,
    next_seq    INTEGER NOT NULL DEFAULT 0,
    created_ms  INTEGER NOT NULL,
    ended_ms    INTEGER,
    -- The status of its last end; NULL while it has not ended.
    status      TEXT,
    ending      TEXT,
    turns       INTEGER NOT NULL DEFAULT 0,
    calls       INTEGER NOT NULL DEFAULT 0,
    asked       INTEGER NOT NULL DEFAULT 0,
    usage       TEXT NOT NULL,
    UNIQUE (kind, scope, idem_key)
);
CREATE INDEX runs_not_ended ON runs (state, kind, scope) WHERE state <> 'ended';
CREATE INDEX runs_ended ON runs (ended_ms) WHERE state = 'ended';

CREATE TABLE events (
    run         INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
    seq         INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    at_ms       INTEGER NOT NULL,
    body        TEXT NOT NULL,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;

CREATE TABLE questions (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    -- NULL: a call of a client's own, which is gone with its owner.
    run         INTEGER REFERENCES runs (number) ON DELETE CASCADE,
    run_id      TEXT,
    scope       TEXT NOT NULL,
    owner       TEXT,
    fingerprint BLOB NOT NULL,
    request     TEXT NOT NULL,
    asked_ms    INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    -- NULL while it is open: 'decided', 'withdrawn', 'expired'.
    fate        TEXT,
    answer      TEXT,
    decided_by  TEXT,
    decided_ms  INTEGER
);
CREATE INDEX questions_open ON questions (number) WHERE fate IS NULL;
CREATE INDEX questions_of_run ON questions (run, fingerprint);
CREATE INDEX questions_always ON questions (decided_ms) WHERE answer = '"always"';
